#include "server/openai_misc.h"

#include <gtest/gtest.h>

#include <cctype>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fakes.h"
#include "server/json_text.h"
#include "server/openai_embeddings.h"
#include "server/openai_errors.h"
#include "server/random_id.h"

namespace carat::server {
namespace {

using Handler = std::function<void(Service&, std::shared_ptr<HttpExchange>)>;

std::shared_ptr<FakeExchange> send(FakeService& service, const Handler& handler, const std::string& body,
                                   const std::string& path = "/", const std::string& query = "") {
  auto exchange = std::make_shared<FakeExchange>(body, "POST", path);
  exchange->mutable_request().query = query;
  handler(service, exchange);
  EXPECT_TRUE(exchange->mistakes().empty());
  EXPECT_TRUE(exchange->response().has_value());
  return exchange;
}

TEST(OpenAiErrors, HaveTypesByStatus) {
  const auto type = [](int status) { return Json::parse(openai_error_text(api_error(status, "m")))["error"]["type"]; };
  EXPECT_EQ(type(400), "invalid_request_error");
  EXPECT_EQ(type(401), "authentication_error");
  EXPECT_EQ(type(403), "permission_error");
  EXPECT_EQ(type(404), "invalid_request_error");
  EXPECT_EQ(type(413), "invalid_request_error");
  EXPECT_EQ(type(429), "rate_limit_error");
  EXPECT_EQ(type(500), "server_error");
  EXPECT_EQ(type(503), "server_error");
  EXPECT_EQ(Json::parse(openai_error_text(api_error(404, "m\xff", "c", "p"))),
            Json::parse(R"({"error":{"message":"m\ufffd","type":"invalid_request_error","param":"p","code":"c"}})"));
  EXPECT_TRUE(openai_error(api_error(400, "m")).headers.empty());
}

TEST(JsonText, IsAlwaysUtf8) {
  EXPECT_EQ(json_string("a\"\\\n\x01ü"), R"("a\"\\\n\u0001ü")");
  EXPECT_EQ(json_string("\xff"), "\"\ufffd\"");
  EXPECT_EQ(number_text(0.1f), "0.1");
  EXPECT_TRUE(is_utf8("aü€😀"));
  EXPECT_FALSE(is_utf8("\xc3"));
  EXPECT_FALSE(is_utf8("\xed\xa0\x80"));
}

TEST(RandomId, IsNew) {
  const std::string id = random_id("call_");
  EXPECT_EQ(id.size(), 29u);
  EXPECT_NE(id, random_id("call_"));
  for (const char c : id.substr(5)) EXPECT_TRUE(std::isalnum(static_cast<unsigned char>(c)));
}

TEST(OpenAiModels, ListsModelsAndAdapters) {
  FakeService service;
  const Json json = send(service, handle_openai_models, "")->json();
  EXPECT_EQ(json, Json::parse(R"({"object":"list","data":[
    {"id":"tiny","object":"model","created":1700000000,"owned_by":"carat","context_window":4096,"reasoning":true},
    {"id":"tiny:poet","object":"model","created":1700000000,"owned_by":"carat","context_window":4096,"reasoning":true,
     "parent":"tiny"}]})"));
}

TEST(OpenAiModels, ShowsOne) {
  FakeService service;
  EXPECT_EQ(send(service, handle_openai_model, "", "/v1/models/tiny")->json()["id"], "tiny");
  EXPECT_EQ(send(service, handle_openai_model, "", "/v1/models/tiny:poet")->json()["id"], "tiny:poet");
  for (const char* path : {"/v1/models/huge", "/v1/models/a/b", "/v1/models/", "/v1/models/tiny/models/tiny"}) {
    const auto exchange = send(service, handle_openai_model, "", path);
    EXPECT_EQ(exchange->status(), 404) << path;
    EXPECT_EQ(exchange->json()["error"]["code"], "model_not_found");
  }
}

TEST(Tokenize, AnswersIds) {
  FakeService service;
  const auto tokens = [&](const char* body) { return send(service, handle_tokenize, body)->json(); };
  EXPECT_EQ(tokens(R"({"content":"hi"})"), Json::parse(R"({"tokens":[360,361],"count":2})"));
  EXPECT_EQ(tokens(R"({"text":"h","add_special":true})"), Json::parse(R"({"tokens":[2,360],"count":2})"));
  EXPECT_EQ(tokens(R"({"prompt":""})"), Json::parse(R"({"tokens":[],"count":0})"));
  EXPECT_EQ(tokens(R"({"content":"aé","with_pieces":true})"), Json::parse(R"({"tokens":[
    {"id":353,"piece":"a"},{"id":451,"piece":[195]},{"id":425,"piece":[169]}],"count":3})"));
  EXPECT_EQ(send(service, handle_tokenize, "{}")->json()["error"]["param"], "content");
  EXPECT_EQ(send(service, handle_tokenize, R"({"content":[1]})")->status(), 400);
  EXPECT_EQ(send(service, handle_tokenize, R"({"content":"a","add_special":1})")->status(), 400);
  EXPECT_EQ(send(service, handle_tokenize, R"({"content":"a","model":"huge"})")->status(), 404);
}

TEST(Tokenize, IsUndoneByDetokenize) {
  FakeService service;
  const Json tokens = send(service, handle_tokenize, R"({"content":"hé"})")->json()["tokens"];
  EXPECT_EQ(send(service, handle_detokenize, Json{{"tokens", tokens}}.dump())->json(),
            Json({{"content", "hé"}, {"prompt", "hé"}}));
  EXPECT_EQ(send(service, handle_detokenize, R"({"tokens":[451]})")->json()["content"], "\ufffd");
  EXPECT_EQ(send(service, handle_detokenize, R"({"tokens":[]})")->json()["content"], "");
  EXPECT_EQ(send(service, handle_detokenize, R"({"tokens":["a"]})")->json()["error"]["param"], "tokens[0]");
  EXPECT_EQ(send(service, handle_detokenize, R"({"tokens":[600]})")->status(), 400);
  EXPECT_EQ(send(service, handle_detokenize, "{}")->status(), 400);
}

TEST(Adapters, AreListedLoadedAndRemoved) {
  FakeService service;
  EXPECT_EQ(send(service, handle_adapters, "")->json(), Json::parse(R"({"adapters":[
    {"id":"poet","path":"/adapters/poet","rank":8,"scale":2.0,"size_bytes":4096,"mounted_layers":12}]})"));
  EXPECT_EQ(send(service, handle_load_adapter, R"({"id":"bard","path":"/b"})")->json(),
            Json::parse(R"({"id":"bard","path":"/b","rank":4,"scale":1.0,"size_bytes":1024,"mounted_layers":6})"));
  EXPECT_EQ(send(service, handle_remove_adapter, "", "/v1/adapters/poet")->json(),
            Json::parse(R"({"id":"poet","removed_layers":12})"));
  EXPECT_EQ(send(service, handle_remove_adapter, "", "/v1/adapters/poet")->status(), 404);
  EXPECT_EQ(send(service, handle_adapters, "")->json()["adapters"].size(), 1u);
}

TEST(Adapters, BelongToTheModelThatIsNamed) {
  FakeService service;
  EXPECT_EQ(send(service, handle_adapters, "", "/v1/adapters", "a=1&model=t%69ny")->status(), 200);
  EXPECT_EQ(send(service, handle_adapters, "", "/v1/adapters", "model=huge&a=1")->status(), 404);
  EXPECT_EQ(send(service, handle_adapters, "", "/v1/adapters", "model=%zz%")->status(), 404);
  EXPECT_EQ(send(service, handle_load_adapter, R"({"id":"x","path":"/b","model":"huge"})")->status(), 404);
  EXPECT_EQ(send(service, handle_remove_adapter, "", "/v1/adapters/poet", "model=huge")->status(), 404);
}

TEST(Adapters, HaveIdsThatCanBeAskedFor) {
  FakeService service;
  for (const char* id : {"", "a+b", "a,b", "a:b", "a/b", "none"}) {
    const auto exchange = send(service, handle_load_adapter, Json{{"id", id}, {"path", "/b"}}.dump());
    EXPECT_EQ(exchange->status(), 400) << id;
    EXPECT_EQ(exchange->json()["error"]["param"], "id");
  }
  EXPECT_EQ(send(service, handle_load_adapter, R"({"id":"a"})")->json()["error"]["param"], "path");
  EXPECT_EQ(send(service, handle_load_adapter, R"({"id":"a","path":""})")->json()["error"]["param"], "path");
  EXPECT_EQ(send(service, handle_load_adapter, R"({"path":"/b"})")->json()["error"]["param"], "id");
}

Json embed(FakeService& service, const char* body) {
  return send(service, handle_openai_embeddings, body)->json();
}

TEST(OpenAiEmbeddings, HaveTheShapeThatClientsKnow) {
  FakeService service;
  EXPECT_EQ(embed(service, R"({"input":"hi"})"), Json::parse(R"({"object":"list","data":[
    {"object":"embedding","index":0,"embedding":[0.6,0,-0.8,0]}],"model":"tiny",
    "usage":{"prompt_tokens":3,"total_tokens":3}})"));
  EXPECT_EQ(service.embedded, (std::vector<std::vector<int>>{{2, 360, 361}}));
}

TEST(OpenAiEmbeddings, TakeInputsInEveryForm) {
  using Inputs = std::vector<std::vector<int>>;
  const auto inputs = [](const char* body) {
    FakeService service;
    const Json json = embed(service, body);
    EXPECT_EQ(json["data"].size(), service.embedded.size()) << json;
    for (size_t i = 0; i < json["data"].size(); ++i) EXPECT_EQ(json["data"][i]["index"], i);
    return service.embedded;
  };
  EXPECT_EQ(inputs(R"({"input":["h","i"]})"), (Inputs{{2, 360}, {2, 361}}));
  EXPECT_EQ(inputs(R"({"input":[5,6]})"), (Inputs{{5, 6}}));
  EXPECT_EQ(inputs(R"({"input":[[5],[6,7]]})"), (Inputs{{5}, {6, 7}}));
}

TEST(OpenAiEmbeddings, AreWrittenInBase64) {
  FakeService service;
  // 0.6, 0, -0.8, 0 in float32: 9a99193f 00000000 cdcc4cbf 00000000.
  EXPECT_EQ(embed(service, R"({"input":"hi","encoding_format":"base64"})")["data"][0]["embedding"],
            "mpkZPwAAAADNzEy/AAAAAA==");
  EXPECT_EQ(embed(service, R"({"input":"hi","encoding_format":"base64","dimensions":3})")["data"][0]["embedding"],
            "mpkZPwAAAADNzEy/");
}

TEST(OpenAiEmbeddings, AreShortenedToLengthOne) {
  FakeService service;
  EXPECT_EQ(embed(service, R"({"input":"hi","dimensions":1})")["data"][0]["embedding"], Json::parse("[1]"));
  EXPECT_EQ(embed(service, R"({"input":"hi","dimensions":4})")["data"][0]["embedding"].size(), 4u);
  EXPECT_EQ(embed(service, R"({"input":"hi","dimensions":5})")["error"]["param"], "dimensions");
}

TEST(OpenAiEmbeddings, NameTheFieldToBlame) {
  const std::pair<const char*, const char*> cases[] = {
      {"{}", "input"},
      {R"({"input":""})", "input"},
      {R"({"input":[]})", "input"},
      {R"({"input":5})", "input"},
      {R"({"input":["a",""]})", "input[1]"},
      {R"({"input":["a",5]})", "input[1]"},
      {R"({"input":[[]]})", "input[0]"},
      {R"({"input":[[1,"a"]]})", "input[0][1]"},
      {R"({"input":[1,-1]})", "input[1]"},
      {R"({"input":"a","encoding_format":"int8"})", "encoding_format"},
      {R"({"input":"a","dimensions":0})", "dimensions"},
      {R"({"input":"a","model":"huge"})", "model"},
  };
  for (const auto& [body, param] : cases) {
    FakeService service;
    EXPECT_EQ(embed(service, body)["error"]["param"], param) << body;
    EXPECT_TRUE(service.embedded.empty()) << body;
  }
}

TEST(OpenAiEmbeddings, PassOnFailures) {
  FakeService service;
  service.embed_error = api_error(503, "no memory");
  EXPECT_EQ(send(service, handle_openai_embeddings, R"({"input":"a"})")->status(), 503);
  service.refusal = api_error(429, "full");
  EXPECT_EQ(send(service, handle_openai_embeddings, R"({"input":"a"})")->status(), 429);
}

TEST(OpenAiRoutes, RefuseBodiesThatAreNoJson) {
  for (const Handler& handler : {Handler(handle_tokenize), Handler(handle_detokenize), Handler(handle_load_adapter),
                                 Handler(handle_openai_embeddings)}) {
    FakeService service;
    EXPECT_EQ(send(service, handler, "{\"a\":")->status(), 400);
    EXPECT_EQ(send(service, handler, "")->status(), 400);
    EXPECT_EQ(send(service, handler, "[]")->status(), 400);
  }
}

}  // namespace
}  // namespace carat::server
