#include "checkpoint/hub.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "checkpoint/http.h"
#include "checkpoint/partial_file.h"

namespace carat {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int kAttempts = 5;
constexpr size_t kListingLimit = size_t{64} << 20;
constexpr uint64_t kFileLimit = uint64_t{1} << 48;  // more than any disk: sums of sizes cannot overflow

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string first_word(const fs::path& file) {
  std::ifstream stream(file);
  std::string word;
  stream >> word;
  return word;
}

std::string find_token() {
  std::string token = environment("HF_TOKEN");
  if (token.empty()) {
    const std::string path = environment("HF_TOKEN_PATH");
    const std::string home = environment("HF_HOME");
    const std::string cache = environment("XDG_CACHE_HOME");
    if (!path.empty()) {
      token = first_word(path);
    } else if (!home.empty()) {
      token = first_word(fs::path(home) / "token");
    } else if (!cache.empty()) {
      token = first_word(fs::path(cache) / "huggingface" / "token");
    } else {
      token = first_word(fs::path(environment("HOME")) / ".cache" / "huggingface" / "token");
    }
  }
  const auto printable = [](char c) { return c > ' ' && c < 0x7f; };
  if (!std::all_of(token.begin(), token.end(), printable)) fail("HF_TOKEN holds characters that no token has");
  return token;
}

bool is_hex(std::string_view text, size_t digits) {
  return text.size() == digits &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

/// Relative, and no component that could climb out of or hide in the model's directory.
bool is_safe_path(std::string_view path) {
  if (path.empty() || path.size() > 512) return false;
  while (true) {
    const size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (std::any_of(part.begin(), part.end(),
                    [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\\'; })) {
      return false;
    }
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

std::string_view file_name(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
  }
  return result;
}

/// Of a split set only the first part counts.
bool is_gguf_model(const HubFile& file) {
  const std::string name = lower(file_name(file.path));
  const auto split = SplitName::parse(file_name(file.path));
  return (!split || split->part == 1) && name.ends_with(".gguf") && name.find("mmproj") == std::string::npos &&
         name.find("imatrix") == std::string::npos;
}

bool is_companion(std::string_view path) {
  constexpr std::string_view kNames[] = {"config.json",           "generation_config.json", "tokenizer.json",
                                         "tokenizer_config.json", "tokenizer.model",        "special_tokens_map.json",
                                         "added_tokens.json",     "chat_template.jinja",    "chat_template.json",
                                         "adapter_config.json"};
  return std::find(std::begin(kNames), std::end(kNames), path) != std::end(kNames);
}

/// All parts of the set that `file` is the first of, or the file alone.
std::vector<HubFile> with_parts(const HubListing& listing, const HubFile& file) {
  const auto split = SplitName::parse(file_name(file.path));
  if (!split) return {file};
  const std::string directory = file.path.substr(0, file.path.size() - file_name(file.path).size());
  std::vector<HubFile> parts;
  for (int part = 1; part <= split->parts; ++part) {
    const std::string path = directory + split->filename(part);
    const auto found =
        std::find_if(listing.files.begin(), listing.files.end(), [&](const HubFile& f) { return f.path == path; });
    if (found == listing.files.end()) fail("the repository lacks {}, part {} of {}", path, part, split->parts);
    parts.push_back(*found);
  }
  return parts;
}

std::vector<HubFile> choose_gguf(const HubListing& listing, const HubId& id, std::string_view wanted) {
  std::vector<HubFile> models;
  std::string wanted_first(wanted);  // a later part of a split set stands for the set
  if (const auto split = SplitName::parse(file_name(wanted))) {
    wanted_first = wanted.substr(0, wanted.size() - file_name(wanted).size());
    wanted_first += split->filename(1);
  }
  std::copy_if(listing.files.begin(), listing.files.end(), std::back_inserter(models), is_gguf_model);
  const auto matching = [&](const auto& matches) {
    std::vector<HubFile> found;
    std::copy_if(models.begin(), models.end(), std::back_inserter(found), matches);
    return found;
  };
  std::vector<HubFile> found = models;
  if (!wanted.empty()) {
    found = matching([&](const HubFile& file) { return file.path == wanted_first; });
    if (found.empty()) found = matching([&](const HubFile& file) { return file_name(file.path) == wanted_first; });
    if (found.empty()) {
      found = matching([&](const HubFile& f) { return lower(f.path).find(lower(wanted)) != std::string::npos; });
    }
  }
  if (found.size() == 1) return with_parts(listing, found.front());
  std::string list;
  for (const HubFile& file : found.empty() ? models : found) {
    list += fmt::format("\n  {} ({})", file.path, format_bytes(file.size));
  }
  if (found.empty() && models.empty())
    fail("{} has no GGUF model, so --file {} picks nothing", id.repository(), wanted);
  if (found.empty()) fail("{} has no GGUF model '{}'; it has:{}", id.repository(), wanted, list);
  fail("{} has several GGUF models; pick one with --file NAME:{}", id.repository(), list);
}

[[noreturn]] void refuse(const Hub& hub, const HubId& id, const HttpReply& reply, bool has_token,
                         std::string_view what) {
  std::string said = reply.header("x-error-message");
  if (!said.empty()) said = fmt::format(" (\"{}\")", said);
  const std::string page = fmt::format("{}/{}", hub.endpoint(), id.repository());
  switch (reply.status) {
    case 401:
      if (has_token) fail("{}: status 401{}: the token was not accepted; check HF_TOKEN", what, said);
      fail("{}: status 401{}: there is no such model, or it asks who you are; see {} and set HF_TOKEN", what, said,
           page);
    case 403:
      fail("{}: status 403{}: {} may not read it; accept its terms at {}{}", what, said,
           has_token ? "the owner of this token" : "an anonymous reader", page, has_token ? "" : " and set HF_TOKEN");
    case 404:
      fail("{}: status 404{}: no such model or file; check the name at {}", what, said, page);
    default:
      fail("{}: unexpected status {}{}", what, reply.status, said);
  }
}

/// Runs `attempt` until it returns true (done) or false (try again at once); waits between transient failures.
/// `progressed` tells whether anything was gained since it was last asked: then the count starts over.
template <typename Attempt, typename Progressed>
void with_retries(const Say& say, const Attempt& attempt, const Progressed& progressed) {
  for (int tries = 1;; ++tries) {
    try {
      if (attempt()) return;
    } catch (const TransientError& error) {
      if (progressed()) tries = 1;
      if (tries >= kAttempts) fail("{}; gave up after {} attempts, run the same command to go on", error.what(), tries);
      const int seconds = std::max(error.wait_seconds(), 1 << (tries - 1));
      if (say) say(fmt::format("{}; trying again in {} s", error.what(), seconds));
      std::this_thread::sleep_for(std::chrono::seconds(seconds));
    }
  }
}

/// The digest that the hub itself names while it answers: X-Linked-Etag for large files, its ETag otherwise. The ETag
/// of a content server that it redirects to means something else.
std::string digest_of(const HttpReply& reply, const std::string& endpoint) {
  const auto linked = reply.linked.find("x-linked-etag");
  std::string tag;
  if (linked != reply.linked.end()) {
    tag = linked->second;
  } else if (url_origin(reply.url) == url_origin(endpoint)) {
    tag = reply.header("etag");
  }
  if (tag.starts_with("W/")) tag.erase(0, 2);
  if (tag.size() >= 2 && tag.front() == '"' && tag.back() == '"') tag = tag.substr(1, tag.size() - 2);
  return is_hex(tag, 64) || is_hex(tag, 40) ? tag : std::string();
}

void check_range(const HttpReply& reply, uint64_t offset, std::string_view what) {
  const std::string range = reply.header("content-range");
  if (!range.starts_with(fmt::format("bytes {}-", offset))) {
    fail("{}: asked for the bytes from {} on, the server sent '{}'", what, offset, range);
  }
}

}  // namespace

HubListing parse_hub_listing(std::string_view json, std::string_view origin) {
  HubListing listing;
  try {
    const Json root = Json::parse(json);
    listing.commit = root.at("sha").get<std::string>();
    for (const Json& sibling : root.at("siblings")) {
      HubFile file;
      file.path = sibling.at("rfilename").get<std::string>();
      if (!is_safe_path(file.path)) fail("{} lists a file with the unsafe path '{}'", origin, file.path);
      const bool large = sibling.contains("lfs") && sibling["lfs"].is_object();
      const Json& size = (large ? sibling["lfs"] : sibling).at("size");
      if (!size.is_number_unsigned() || size.get<uint64_t>() > kFileLimit) {
        fail("{} lists {} with the impossible size {}", origin, file.path,
             size.is_primitive() ? size.dump() : size.type_name());
      }
      file.size = size.get<uint64_t>();
      if (large) {
        file.digest = sibling["lfs"].at("sha256").get<std::string>();
        if (!is_hex(file.digest, 64)) fail("{} lists {} with the bad SHA-256 '{}'", origin, file.path, file.digest);
      } else if (sibling.contains("blobId") && sibling["blobId"].is_string()) {
        file.digest = sibling["blobId"].get<std::string>();
        if (!is_hex(file.digest, 40)) fail("{} lists {} with the bad blob id '{}'", origin, file.path, file.digest);
      }
      listing.files.push_back(std::move(file));
    }
  } catch (const Json::exception& error) {
    fail("{} is not a listing of a model's files: {}", origin, error.what());
  }
  if (!is_hex(listing.commit, 40)) fail("{} names the commit '{}', expected 40 hex digits", origin, listing.commit);
  return listing;
}

std::vector<HubFile> choose_hub_files(const HubListing& listing, const HubId& id, std::string_view wanted) {
  std::vector<HubFile> weights, companions;
  bool config = false, gguf = false;
  for (const HubFile& file : listing.files) {
    if (is_companion(file.path)) companions.push_back(file);
    config = config || file.path == "config.json";
    gguf = gguf || is_gguf_model(file);
    // Weights lie at the top; other copies ("original/", "consolidated…") are the same model for other programs.
    const bool top = file.path.find('/') == std::string::npos && !file.path.starts_with("consolidated");
    if (top && (file.path.ends_with(".safetensors") || file.path.ends_with(".safetensors.index.json"))) {
      weights.push_back(file);
    }
  }
  const bool any_weights = std::any_of(weights.begin(), weights.end(),
                                       [](const HubFile& file) { return file.path.ends_with(".safetensors"); });
  if (!wanted.empty()) return choose_gguf(listing, id, wanted);
  if (config && any_weights) {
    companions.insert(companions.end(), weights.begin(), weights.end());
    return companions;
  }
  if (gguf) return choose_gguf(listing, id, wanted);
  fail("{} is not a model that carat can read: it has {}, and no GGUF file", id.repository(),
       any_weights ? "safetensors but no config.json" : "no safetensors files");
}

Hub::Hub(Say say) : endpoint_(environment("HF_ENDPOINT")), token_(find_token()), say_(std::move(say)) {
  const std::string offline = environment("HF_HUB_OFFLINE");
  if (offline == "1" || lower(offline) == "true") fail("HF_HUB_OFFLINE is set, so the hub is not asked");
  if (endpoint_.empty()) endpoint_ = "https://huggingface.co";
  while (endpoint_.ends_with('/')) endpoint_.pop_back();
  url_origin(endpoint_);
}

HubListing Hub::list(const HubId& id) const {
  const std::string revision = id.revision.empty() ? "main" : id.revision;
  const std::string url = fmt::format("{}/api/models/{}/revision/{}?blobs=true", endpoint_, url_encode(id.repository()),
                                      url_encode(revision, true));
  HubListing listing;
  with_retries(
      say_,
      [&] {
        std::string body;
        HttpRequest request{.url = url, .token = token_, .token_url = endpoint_, .on_start = {}, .on_body = {}};
        request.on_body = [&](std::span<const std::byte> bytes) {
          if (body.size() + bytes.size() > kListingLimit) fail("{} is longer than {} bytes", url, kListingLimit);
          body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        };
        const HttpReply reply = http_get(request);
        if (reply.status != 200)
          refuse(*this, id, reply, !token_.empty(), fmt::format("{} at revision {}", id.repository(), revision));
        listing = parse_hub_listing(body, url);
        return true;
      },
      [] { return false; });
  return listing;
}

void Hub::download(const HubId& id, const std::string& commit, const HubFile& file, const fs::path& target,
                   Progress& progress) const {
  const std::string what = fmt::format("{}/{}", id.repository(), file.path);
  const std::string url =
      fmt::format("{}/{}/resolve/{}/{}", endpoint_, url_encode(id.repository()), commit, url_encode(file.path));
  const uint64_t before = progress.done();
  const Say say = [&](std::string_view news) {
    progress.wipe();
    if (say_) say_(news);
  };
  PartialFile partial(target.string() + ".incomplete", file.size, file.digest);
  const uint64_t found = partial.size();
  progress.resume_at(before + found);
  bool resumed = found > 0;
  uint64_t best = found;
  const auto attempt = [&] {
    std::string digest = file.digest;
    if (partial.size() < file.size || file.size == 0 || digest.empty()) {
      const uint64_t offset = partial.size() < file.size ? partial.size() : 0;
      HttpRequest request{
          .url = url, .token = token_, .token_url = endpoint_, .offset = offset, .on_start = {}, .on_body = {}};
      request.on_start = [&](const HttpReply& reply) {
        const std::string told = digest_of(reply, endpoint_);
        if (digest.empty()) digest = told;
        if (told.size() == digest.size() && told != digest) {
          fail("{}: the listing says {}, the download {}: it changed meanwhile, try again", what, digest, told);
        }
        if (reply.status == 206) {
          check_range(reply, offset, what);
        } else if (partial.size() > 0) {
          partial.restart();
        }
      };
      request.on_body = [&](std::span<const std::byte> bytes) {
        partial.append(bytes);
        progress.set(before + partial.size());
      };
      const HttpReply reply = http_get(request);
      if (reply.status == 416) {  // what we have is no prefix of what the server has
        partial.restart();
        throw TransientError(fmt::format("{}: the server has no bytes from {} on", what, offset));
      }
      if (reply.status != 200 && reply.status != 206) refuse(*this, id, reply, !token_.empty(), what);
      if (partial.size() < file.size) {
        throw TransientError(fmt::format("{} ended after {} of {} bytes", what, partial.size(), file.size));
      }
    }
    if (digest.empty()) fail("{}: the hub tells no checksum, so it cannot be trusted", what);
    const std::string actual = partial.digest(digest.size());
    if (actual == digest) return true;
    partial.remove();
    progress.set(before);
    if (!resumed) fail("{} is damaged: its checksum is {}, expected {}; it was deleted", what, actual, digest);
    resumed = false;  // the part from an earlier run may be to blame: once more, from the start
    say(fmt::format("{}: the part fetched earlier was damaged; fetching it again", what));
    return false;
  };
  with_retries(say, attempt, [&] { return std::exchange(best, std::max(best, partial.size())) < partial.size(); });
  partial.finish(target);
  progress.set(before + file.size);
}

}  // namespace carat
