// Matches published values with look-ups, and ends those whose partner died.
#include "modules/mpi_elastic/pmix_server/exchange.h"

#include <algorithm>
#include <utility>

namespace hvd::pmix_server {

std::string port_of(const std::string& key) {
  const size_t first = key.find(':');
  const size_t second = first == std::string::npos ? first : key.find(':', first + 1);
  return key.substr(0, second);
}

bool Exchange::meet(const std::string& process, const std::string& key) {
  Port& port = ports_[port_of(key)];
  port.partners.insert(process);
  return !port.lost;
}

Answers Exchange::publish(const std::string& process, const std::string& key, Value value, bool once) {
  meet(process, key);
  Answers answers;
  bool taken = false;
  for (auto waiting = waiting_.begin(); waiting != waiting_.end();) {
    if (waiting->key != key || taken) {
      ++waiting;
      continue;
    }
    answers.push_back({waiting->ticket, Answer::Result::kFound, key, process, value});
    waiting = waiting_.erase(waiting);
    taken = once;
  }
  if (!taken) items_[key] = {process, std::move(value), once};
  return answers;
}

Answers Exchange::look_up(const std::string& process, const std::string& key, uint64_t ticket, bool waits,
                          Time now) {
  const bool alive = meet(process, key);
  if (const auto item = items_.find(key); item != items_.end()) {
    Answers answers{{ticket, Answer::Result::kFound, key, item->second.owner, item->second.value}};
    if (item->second.once) items_.erase(item);
    return answers;
  }
  if (!alive) return {{ticket, Answer::Result::kLost, key, {}, {}}};
  if (!waits) return {{ticket, Answer::Result::kAbsent, key, {}, {}}};
  waiting_.push_back({process, key, ticket, now + patience_});
  return {};
}

void Exchange::unpublish(const std::string& process, const std::string& key) {
  if (const auto item = items_.find(key); item != items_.end() && item->second.owner == process)
    items_.erase(item);
}

Answers Exchange::died(const std::string& process) {
  std::erase_if(items_, [&](const auto& item) { return item.second.owner == process; });
  std::erase_if(waiting_, [&](const Waiting& one) { return one.process == process; });
  for (auto port = ports_.begin(); port != ports_.end();) {
    Port& it = port->second;
    if (it.partners.erase(process) > 0) it.lost = true;
    port = it.partners.empty() ? ports_.erase(port) : std::next(port);
  }
  Answers answers;
  std::erase_if(waiting_, [&](const Waiting& one) {
    const auto port = ports_.find(port_of(one.key));
    const bool lost = port != ports_.end() && port->second.lost;
    if (lost) answers.push_back({one.ticket, Answer::Result::kLost, one.key, {}, {}});
    return lost;
  });
  return answers;
}

Answers Exchange::expire(Time now) {
  Answers answers;
  std::erase_if(waiting_, [&](const Waiting& one) {
    if (one.until > now) return false;
    answers.push_back({one.ticket, Answer::Result::kTimeout, one.key, {}, {}});
    return true;
  });
  return answers;
}

std::optional<Time> Exchange::next() const {
  if (waiting_.empty()) return std::nullopt;
  return waiting_.front().until;  // all have the same patience
}

}  // namespace hvd::pmix_server
