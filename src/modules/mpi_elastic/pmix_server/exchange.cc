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
  const std::string name = port_of(key);
  Port& port = ports_[name];
  if (port.partners.insert(process).second) {
    std::deque<std::string>& all = partner_of_[process];
    all.push_back(name);
    if (all.size() > kMostPorts) {
      part(process, all.front());
      all.pop_front();
    }
  }
  return !port.lost;
}

void Exchange::part(const std::string& process, const std::string& port) {
  const auto found = ports_.find(port);
  if (found == ports_.end()) return;
  found->second.partners.erase(process);
  if (found->second.partners.empty()) ports_.erase(found);
}

std::optional<Answers> Exchange::publish(const std::string& process, const std::string& key, Value value,
                                         bool once) {
  const auto mine = std::count_if(items_.begin(), items_.end(),
                                  [&](const auto& item) { return item.second.owner == process; });
  const auto there = items_.find(key);
  if (there == items_.end() ? static_cast<size_t>(mine) >= kMostValues : there->second.owner != process)
    return std::nullopt;
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
  const auto mine = std::count_if(waiting_.begin(), waiting_.end(),
                                  [&](const Waiting& one) { return one.process == process; });
  if (!waits || static_cast<size_t>(mine) >= kMostWaiting)
    return {{ticket, Answer::Result::kAbsent, key, {}, {}}};
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
  partner_of_.erase(process);
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
