// Reports in order: runs of spooled output, and between them what is kept in memory.
#include "agent/backlog.h"

#include <cstring>
#include <utility>

namespace hvd::agent {
namespace {

// Before the bytes of each report of output in the spool, which is this process's own.
struct Header {
  uint64_t worker = 0;
  uint32_t size = 0;
  uint32_t is_stderr = 0;
};

}  // namespace

bool Backlog::spool(const wire::AgentOutputT& output) {
  if (full_ || !spool_) return false;
  const Header header{output.worker, static_cast<uint32_t>(output.bytes.size()), output.is_stderr ? 1U : 0U};
  std::string record(sizeof header + output.bytes.size(), '\0');
  std::memcpy(record.data(), &header, sizeof header);
  if (!output.bytes.empty())
    std::memcpy(record.data() + sizeof header, output.bytes.data(), output.bytes.size());
  if (!spool_->push(record)) return false;
  if (items_.empty() || !std::holds_alternative<Run>(items_.back())) items_.emplace_back(Run{0});
  std::get<Run>(items_.back()) += record.size();
  return true;
}

void Backlog::push(Report report) {
  if (const auto* output = std::get_if<wire::AgentOutputT>(&report)) {
    bytes_ += output->bytes.size();
    if (spool(*output)) return;
    full_ = true;
  }
  items_.emplace_back(std::move(report));
}

std::optional<Report> Backlog::pop() {
  while (!items_.empty()) {
    if (auto* kept = std::get_if<Report>(&items_.front())) {
      Report report = std::move(*kept);
      items_.pop_front();
      if (const auto* output = std::get_if<wire::AgentOutputT>(&report)) bytes_ -= output->bytes.size();
      full_ = full_ && !items_.empty();
      return report;
    }
    Run& left = std::get<Run>(items_.front());
    Header header;
    std::string text;
    if (!spool_->pop(sizeof header, &text)) {
      // Where its records begin nobody can tell any more. What is kept in memory is told still.
      uint64_t in_memory = 0;
      std::erase_if(items_, [](const auto& item) { return std::holds_alternative<Run>(item); });
      for (const auto& item : items_) {
        if (const auto* output = std::get_if<wire::AgentOutputT>(&std::get<Report>(item)))
          in_memory += output->bytes.size();
      }
      lost_ += bytes_ - in_memory;
      bytes_ = in_memory;
      spool_->clear();
      continue;
    }
    std::memcpy(&header, text.data(), sizeof header);
    left -= sizeof header + header.size;
    if (left == 0) items_.pop_front();
    bytes_ -= header.size;
    full_ = full_ && !items_.empty();
    if (!spool_->pop(header.size, &text)) {
      lost_ += header.size;
      continue;
    }
    wire::AgentOutputT output;
    output.worker = header.worker;
    output.is_stderr = header.is_stderr != 0;
    output.bytes.assign(text.begin(), text.end());
    return output;
  }
  full_ = false;
  return std::nullopt;
}

void Backlog::clear() {
  items_.clear();
  if (spool_) spool_->clear();
  full_ = false;
  bytes_ = 0;
}

}  // namespace hvd::agent
