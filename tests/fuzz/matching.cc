// Fuzzes what rank 0 and the others read of each other's messages about operations, and what rank 0 decides
// by them.
#include <map>

#include "collective/matcher.h"
#include "collective/messages.h"
#include "fuzz.h"

namespace hvd::fuzz {
namespace {

constexpr int32_t kSize = 3;

Bytes framed(uint8_t source, std::span<const uint8_t> message) {
  Bytes input = {source};
  input.insert(input.end(), message.begin(), message.end());
  return input;
}

std::shared_ptr<collective::Signature> call(const char* name, collective::Kind kind) {
  auto signature = std::make_shared<collective::Signature>();
  signature->name = name;
  signature->kind = kind;
  signature->reduction = HVD_REDUCTION_SUM;
  if (kind != collective::Kind::kBarrier) signature->specs = {{HVD_DTYPE_FLOAT32, {2, 3}}};
  signature->timeout = seconds(60);
  return signature;
}

}  // namespace

void one_input(std::span<const uint8_t> data) {
  Decisions decisions(data);
  const int32_t source = static_cast<int32_t>(decisions.upto(kSize - 1));
  try {
    collective::Message message = collective::decode(decisions.all(), source, kSize);
    auto* got = std::get_if<collective::RequestMessage>(&message);
    if (got == nullptr || got->request.call == nullptr) return;
    collective::validate(got->request, source, kSize);
    // What is valid is decided about, and one outcome goes to every rank at most.
    collective::MatcherConfig config;
    config.hosts = {"a", "a", "b"};
    collective::Matcher matcher(config);
    for (int32_t rank = 0; rank < kSize; ++rank) {
      collective::Request request = got->request;
      request.ticket = 1;
      matcher.request(rank, request, Time{});
    }
    matcher.tick(Time{} + seconds(86400));
    std::map<int32_t, int> outcomes;
    for (const auto& action : matcher.take()) {
      if (action.type != collective::Matcher::Action::Type::kOutcome) continue;
      HVD_PROMISE(action.rank >= 0 && action.rank < kSize);
      HVD_PROMISE(++outcomes[action.rank] == 1);
    }
  } catch (const Error& error) { HVD_PROMISE(error.status().code == HVD_INVALID); }
}

std::vector<Bytes> seeds() {
  collective::Encoder encoder;
  std::vector<Bytes> result;
  for (const auto kind : {collective::Kind::kAllreduce, collective::Kind::kBroadcast,
                          collective::Kind::kAllgather, collective::Kind::kBarrier}) {
    collective::Request request;
    request.ticket = 4;
    const auto signature = call("loss", kind);
    signature->seal();
    request.call = signature;
    result.push_back(framed(1, encoder.encode(request, 1, true)));
    result.push_back(framed(1, encoder.encode(request, 1, false)));
  }
  collective::OutcomeMessage outcome;
  auto decided = std::make_shared<collective::Outcome>();
  decided->sequence = 2;
  decided->rows = {1, 2, 3};
  decided->participants = {0, 2};
  outcome.ticket = 4;
  outcome.more = {5, 6};
  outcome.outcome = decided;
  result.push_back(framed(0, encoder.encode(outcome)));
  auto plain = std::make_shared<collective::Outcome>();
  plain->carries = true;
  plain->payload = std::vector<uint8_t>{1, 2, 3, 4};
  outcome.outcome = plain;
  result.push_back(framed(0, encoder.encode(outcome)));
  result.push_back(framed(0, encoder.encode(collective::StallMessage{4, {1, 2}})));
  result.push_back(framed(0, encoder.encode(collective::ResendMessage{4})));
  result.push_back(framed(2, encoder.encode(collective::FinishMessage{})));
  return result;
}

}  // namespace hvd::fuzz
