// The smallest whole program over carat's C++ interface: loads a model and continues a text.
//   example_generate MODEL [TEXT] [TOKENS]
#include <cstdlib>
#include <exception>
#include <iostream>

#include "carat/engine.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: example_generate MODEL [TEXT] [TOKENS]\n";
    return 2;
  }
  try {
    carat::Engine engine = carat::Engine::load(argv[1]);
    carat::GenerateRequest request;
    request.prompt = engine.encode(argc > 2 ? argv[2] : "Once upon a time");
    request.max_tokens = argc > 3 ? std::atoi(argv[3]) : 100;
    request.sampling.temperature = 0.8f;
    request.sampling.top_k = 64;
    request.sampling.seed = 1;  // same seed, same text
    const carat::GenerateResult result = engine.generate(request, [](const carat::Piece& piece) {
      std::cout << piece.text << std::flush;
      return true;  // false would end the generation
    });
    std::cout << '\n' << result.tokens.size() << " tokens\n";
  } catch (const std::exception& error) {  // carat::Error: one sentence
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
