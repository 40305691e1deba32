// What the rendezvous server does with an operator: hello, commands, answers.
#include <fmt/format.h>

#include <algorithm>

#include "driver/rendezvous_impl.h"
#include "wire/tls.h"

namespace hvd::driver {
namespace {

constexpr size_t kLongestVerb = 64;
constexpr size_t kLongestArgument = 4096;
constexpr int32_t kMostAsked = 16;  // commands of one operator under way

}  // namespace

void RendezvousServer::operate(const ConnectionPtr& connection, wire::EnvelopeT& message) {
  // The key is of this job: the name may be left open, but not be another one's.
  if (!message.job.empty() && message.job != config_.job) {
    return reject(connection, wire::Refusal::Job,
                  fmt::format("this is job {}, not {}", config_.job, printable(message.job)));
  }
  if (!connection->operates) return operator_hello(connection, message);
  if (!connection->sequence.hear(message)) return;
  const auto* command = message.body.AsCommand();
  if (command == nullptr) {
    throw Error(HVD_INVALID, fmt::format("an operator may not send {}", wire::body_name(message)));
  }
  // It is now the one that was idle for the shortest time.
  std::erase(operators_, connection);
  operators_.push_back(connection);
  ++connection->asked;
  connection->deadline.cancel();
  const CommandReply reply = [this, weak = std::weak_ptr<Connection>(connection), id = command->id](
                                 const Status& status, const std::string& text) {
    const ConnectionPtr c = weak.lock();
    if (!c || c->over) return;
    if (--c->asked == 0) expect_command(c);
    wire::CommandAnswerT answer;
    answer.id = id;
    answer.status = status.code;
    answer.text = status.ok() ? text : status.message;
    send(*c, 0, std::move(answer));
  };
  const auto refused = [&](const std::string& why) { reply(Status(HVD_INVALID, why), ""); };
  if (command->verb.empty() || command->verb.size() > kLongestVerb) {
    return refused(fmt::format("a verb of {} bytes: expected 1 to {}", command->verb.size(), kLongestVerb));
  }
  if (command->argument.size() > kLongestArgument) {
    return refused(fmt::format("an argument of {} bytes: expected at most {}", command->argument.size(),
                               kLongestArgument));
  }
  if (connection->asked > kMostAsked) {
    return refused(fmt::format("{} commands under way: expected at most {}", connection->asked, kMostAsked));
  }
  if (!events_.command) return refused("this driver takes no commands");
  events_.command(printable(command->verb), printable(command->argument, kLongestArgument), reply);
}

void RendezvousServer::operator_hello(const ConnectionPtr& connection, const wire::EnvelopeT& message) {
  const auto* hello = message.body.AsOperatorHello();
  if (hello == nullptr) {
    throw Error(HVD_INVALID,
                fmt::format("expected OperatorHello as the first message, not {}", wire::body_name(message)));
  }
  if (const std::string why = wire::foreign_protocol("the operator", hello->protocol, hello->library);
      !why.empty())
    return reject(connection, wire::Refusal::Protocol, why);
  if (operators_.size() >= config_.max_operators) {
    const ConnectionPtr idle = operators_.front();
    reject(idle, wire::Refusal::Busy, fmt::format("{} other operators are connected", config_.max_operators));
  }
  std::erase(strangers_, connection);
  operators_.push_back(connection);
  connection->operates = true;
  connection->sequence.hear(message);
  connection->heard = now();
  expect_command(connection);
  logger_->debug("an operator connected from {}", connection->channel->peer());
}

/// Nobody keeps a connection for nothing.
void RendezvousServer::expect_command(const ConnectionPtr& connection) {
  connection->deadline.start(config_.operator_timeout, [this, weak = std::weak_ptr<Connection>(connection)] {
    const ConnectionPtr c = weak.lock();
    if (c && !c->over) reject(c, wire::Refusal::Stale, "no command for a while: connect again");
  });
}

}  // namespace hvd::driver
