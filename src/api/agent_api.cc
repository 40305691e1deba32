// The functions hvd_agent_* of driver.h, in hvd-driver.so: arguments are checked here, the rest is
// hvd::agent::Agent.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/agent.h"
#include "api/driver_functions.h"
#include "api/guard.h"
#include "api/handle.h"
#include "hvd/driver.h"

using hvd::api::guarded;
using hvd::api::required;
using hvd::api::required_text;
using hvd::api::Use;

struct hvd_agent {
  explicit hvd_agent(const hvd::Options& options) : agent(options) {}
  hvd::agent::Agent agent;
};

namespace {

using AgentUse = Use<hvd_agent>;

std::vector<std::string> strings(const char* const* list) {
  std::vector<std::string> result;
  for (; list != nullptr && *list != nullptr; ++list) result.emplace_back(*list);
  return result;
}

}  // namespace

hvd_status hvd::api::agent_create(const CarriedOptions* options, hvd_agent** ret_agent, hvd_error* error) {
  return guarded(error, [&] { *ret_agent = make_handle(std::make_shared<hvd_agent>(received(*options))); });
}

extern "C" {

hvd_status hvd_agent_set_command(hvd_agent* agent, const char* const* argv, const char* const* environment,
                                 hvd_error* error) {
  return guarded(error, [&] {
    const AgentUse use(agent, "agent");
    required_text(required(argv, "argv"), "argv[0]");
    use->agent.set_command(strings(argv), strings(environment));
  });
}

hvd_status hvd_agent_start(hvd_agent* agent, hvd_error* error) {
  return guarded(error, [&] { AgentUse(agent, "agent")->agent.start(); });
}

hvd_status hvd_agent_wait(hvd_agent* agent, int64_t timeout_ns, hvd_error* error) {
  return guarded(error, [&] {
    const AgentUse use(agent, "agent");
    return use->agent.wait(hvd::api::timeout_of(timeout_ns, std::chrono::hours(24)));
  });
}

hvd_status hvd_agent_stop(hvd_agent* agent, const char* reason, hvd_error* error) {
  return guarded(error, [&] {
    const AgentUse use(agent, "agent");
    use->agent.stop(reason == nullptr || *reason == 0 ? "stopped by the program" : reason);
  });
}

hvd_status hvd_agent_drain(hvd_agent* agent, int64_t timeout_ns, const char* reason, hvd_error* error) {
  return guarded(error, [&] {
    const AgentUse use(agent, "agent");
    use->agent.drain(reason == nullptr || *reason == 0 ? "drained by the program" : reason,
                     hvd::api::timeout_of(timeout_ns, hvd::Duration(0)));
  });
}

void hvd_agent_destroy(hvd_agent* agent) {
  guarded(nullptr, [&] {
    AgentUse(agent, "agent")->agent.close();  // whoever waits comes out
    hvd::api::end_handle(agent);
  });
}

}  // extern "C"
