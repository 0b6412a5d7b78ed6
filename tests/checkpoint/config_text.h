// A ModelConfig as text, so that tests compare all of it and show where two differ.
#pragma once

#include <string>

#include "base/error.h"
#include "checkpoint/model_config.h"

namespace carat::testing {

inline std::string rope_text(const RopeConfig& rope) {
  return fmt::format("{} theta {} partial {} factor {}", static_cast<int>(rope.type), rope.theta, rope.partial,
                     rope.factor);
}

/// Everything but model_type, which says how the file calls itself. `with_eos` false leaves out the stop ids too, of
/// which the formats know differently many.
inline std::string config_text(const ModelConfig& c, bool with_eos = true) {
  std::string out = fmt::format(
      "family {} hidden {} heads {} vocab {} window {} scale {} eps {} plus_one {}\nsliding rope {}\nfull rope {}\n"
      "softcap {} shared {} pli {} x {} experts {} of {} wide {} tied {} positions {} bos {}\n",
      static_cast<int>(c.family), c.hidden, c.heads, c.vocab, c.window, c.attention_scale, c.norm_eps, c.norm_plus_one,
      rope_text(c.rope_sliding), rope_text(c.rope_full), c.final_softcap.value_or(0), c.kv_shared_layers, c.pli_width,
      c.pli_vocab, c.experts_per_token, c.experts, c.expert_width, c.tied_head, c.max_positions, c.bos_id);
  for (size_t i = 0; i < c.layers.size(); ++i) {
    out += fmt::format("layer {} kind {} head_dim {} kv {} k_eq_v {} width {}\n", i, static_cast<int>(c.layers[i].kind),
                       c.layers[i].head_dim, c.layers[i].kv_heads, c.layers[i].k_eq_v, c.mlp_width[i]);
  }
  if (with_eos) {
    for (const int id : c.eos_ids) out += fmt::format("eos {}\n", id);
  }
  return out;
}

}  // namespace carat::testing
