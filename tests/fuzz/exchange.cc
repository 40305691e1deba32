// Fuzzes what hvd-pmix-server keeps of processes that join: any order of calls, each look-up answered once.
#include "modules/mpi_elastic/pmix_server/exchange.h"

#include <map>

#include "fuzz.h"

namespace hvd::fuzz {

void one_input(std::span<const uint8_t> data) {
  using namespace pmix_server;
  Decisions decisions(data);
  Exchange exchange{std::chrono::milliseconds(100)};
  Time now{};
  uint64_t ticket = 0;
  std::map<uint64_t, std::string> open;  // by ticket: who asks
  const auto answered = [&](const Answers& answers) {
    for (const Answer& answer : answers) {
      HVD_PROMISE(open.erase(answer.ticket) == 1);
      HVD_PROMISE((answer.result == Answer::Result::kFound) == (answer.value != nullptr));
    }
  };
  const auto process = [&] { return std::string(1, static_cast<char>('a' + decisions.upto(3))); };
  const auto key = [&]() -> std::string {
    static const char* const usual[] = {"1.0:2:accept", "1.0:2:connect", "1.0:2", "3.0:4:x", "name", ""};
    const uint32_t choice = decisions.upto(7);
    return choice < 6 ? usual[choice] : decisions.text(12);
  };
  for (int steps = 0; !decisions.over() && steps < 2000; ++steps) {
    switch (decisions.upto(4)) {
      case 0: {
        const std::string who = process(), what = key();
        if (const auto answers = exchange.publish(who, what, std::make_shared<int>(1), decisions.coin()))
          answered(*answers);
        break;
      }
      case 1: {
        const std::string who = process(), what = key();
        open[++ticket] = who;
        answered(exchange.look_up(who, what, ticket, decisions.coin(), now));
        break;
      }
      case 2: {
        const std::string who = process();
        exchange.unpublish(who, key());
        break;
      }
      case 3: {
        const std::string who = process();
        std::erase_if(open, [&](const auto& one) { return one.second == who; });
        answered(exchange.died(who));
        break;
      }
      default:
        now += std::chrono::milliseconds(decisions.upto(200));
        answered(exchange.expire(now));
        if (exchange.next()) HVD_PROMISE(*exchange.next() > now);
    }
  }
  HVD_PROMISE(exchange.size() <= 4 * (Exchange::kMostPorts + Exchange::kMostValues));  // of four processes
  answered(exchange.expire(now + std::chrono::hours(1)));
  HVD_PROMISE(open.empty());
  HVD_PROMISE(!exchange.next());
}

std::vector<Bytes> seeds() {
  return {{0, 0, 0, 1, 1, 1, 0, 1},  // a publishes for accept, b looks it up
          {1, 1, 1, 1, 0, 0, 1, 1},  // the other way round
          {1, 0, 0, 1, 1, 1, 1, 1, 3, 0, 4, 150},
          {0, 2, 4, 0, 2, 2, 4, 1, 3, 4, 0, 3, 2}};
}

}  // namespace hvd::fuzz
