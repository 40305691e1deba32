// Reads what was kept, keeps more, and hears how processes end.
#include "launch/keeper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <asio.hpp>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/descriptor.h"
#include "base/descriptor_store.h"
#include "base/status.h"

namespace hvd::launch {
namespace {

constexpr std::string_view kWorker = "worker.", kAgent = "agent.";

template <class Number>
bool read(std::string_view text, Number* ret) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), *ret);
  return error == std::errc() && stop == text.data() + text.size();
}

}  // namespace

struct Keeper::Watch : std::enable_shared_from_this<Watch> {
  Watch(Loop& loop, int socket, std::function<void(const std::string&, int32_t)> f)
      : descriptor(*static_cast<asio::io_context*>(loop.native()), socket), exited(std::move(f)) {}
  ~Watch() { descriptor.release(); }
  void wait() {
    descriptor.async_wait(asio::posix::stream_descriptor::wait_read,
                          [self = shared_from_this()](const asio::error_code& error) {
                            if (!error && self->exited) self->read_all();
                          });
  }
  void read_all() {
    while (auto message = store::receive(descriptor.native_handle(), true)) {
      int32_t status = -1;
      if (message->kind == store::Kind::kExited && read(std::string_view(message->text), &status) && exited)
        exited(message->name, status);
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK)
      return wait();  // else it is gone, and this process goes with it
  }
  asio::posix::stream_descriptor descriptor;
  std::function<void(const std::string&, int32_t)> exited;
};

Keeper::Keeper(int socket, LoggerPtr logger)
    : socket_(socket),
      logger_(std::move(logger)),
      queue_("hvdrun's first process", "a next driver would not know what is new", logger_) {
  ::fcntl(socket_, F_SETFD, FD_CLOEXEC);
  while (true) {
    std::optional<store::Message> message = store::receive(socket_, false);
    if (!message) {
      ::close(socket_);
      throw Error(HVD_UNAVAILABLE, fmt::format("option keeper is {}: nobody keeps this driver there ({})",
                                               socket_, std::strerror(errno)));
    }
    if (message->kind == store::Kind::kBegin) {
      read(std::string_view(message->text), &before_);
      return;
    }
    if (message->kind == store::Kind::kExited) {
      int32_t status = -1;
      read(std::string_view(message->text), &status);
      ended_[message->name] = status;
    } else {
      told_.insert(message->name);
      kept_[message->name] = {std::move(message->text), std::move(message->descriptors)};
    }
  }
}

Keeper::~Keeper() {
  stop_watching();
  queue_.flush();
  for (const auto& [name, kept] : kept_) {
    for (const int fd : kept.descriptors) ::close(fd);
  }
  ::close(socket_);
}

std::optional<Kept> Keeper::take(const std::string& name) {
  const auto found = kept_.find(name);
  if (found == kept_.end()) return std::nullopt;
  Kept kept = std::move(found->second);
  kept_.erase(found);
  return kept;
}

std::string Keeper::name_of(uint64_t worker) { return fmt::format("{}{}", kWorker, worker); }

std::string Keeper::name_of_agent(const std::string& host) { return fmt::format("{}{}", kAgent, host); }

std::vector<InheritedWorker> Keeper::take_workers() { return take_processes(kWorker); }

std::vector<InheritedWorker> Keeper::take_agents() { return take_processes(kAgent); }

std::vector<InheritedWorker> Keeper::take_processes(std::string_view prefix) {
  std::vector<InheritedWorker> found;
  for (auto it = kept_.begin(); it != kept_.end();) {
    InheritedWorker w;
    const std::string& text = it->second.text;
    const size_t first = text.find(' '), second = text.find(' ', first + 1);
    if (!it->first.starts_with(prefix) || second == std::string::npos ||
        !read(std::string_view(text).substr(0, first), &w.pid) ||
        !read(std::string_view(text).substr(first + 1, second - first - 1), &w.slot) ||
        it->second.descriptors.size() != 2) {
      ++it;
      continue;
    }
    if (prefix == kWorker && !read(std::string_view(it->first).substr(prefix.size()), &w.worker)) {
      ++it;
      continue;
    }
    w.host = text.substr(second + 1);
    w.out = it->second.descriptors[0];
    w.err = it->second.descriptors[1];
    if (const auto end = ended_.find(it->first); end != ended_.end()) w.exit_status = end->second;
    found.push_back(std::move(w));
    it = kept_.erase(it);
  }
  return found;
}

/// False: there is no room.
bool Keeper::sent(const store::Message& message) {
  if (store::send(socket_, message, true)) {
    message.kind == store::Kind::kKeep ? void(told_.insert(message.name)) : void(told_.erase(message.name));
    return true;
  }
  if (no_room(errno)) return false;
  if (message.kind == store::Kind::kKeep)
    logger_->warning("{} can't be kept for a next driver: {}", message.name, std::strerror(errno));
  return true;
}

void Keeper::keep(const std::string& name, const std::string& text, const std::vector<int>& descriptors) {
  queue_.forget(name);
  store::Message message{store::Kind::kKeep, name, text, descriptors};
  if (queue_.empty() && sent(message)) return;
  // Until it is sent the caller may have closed its own.
  const auto owned = std::make_shared<std::vector<Descriptor>>();
  for (int& fd : message.descriptors) {
    owned->emplace_back(fd = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    if (fd >= 0) continue;
    return logger_->warning("{} can't be kept for a next driver: {}", name, std::strerror(errno));
  }
  queue_.add(name, [this, owned, message = std::move(message)] { return sent(message); });
}

void Keeper::drop(const std::string& name) {
  queue_.forget(name);
  if (told_.contains(name))
    queue_.add(name, [this, name] { return sent({store::Kind::kDrop, name, "", {}}); });
}

std::optional<int32_t> Keeper::ended(const std::string& name) const {
  const auto found = ended_.find(name);
  return found == ended_.end() ? std::nullopt : std::optional(found->second);
}

void Keeper::watch(Loop& loop) {
  stop_watching();
  watch_ = std::make_shared<Watch>(loop, socket_, [this](const std::string& name, int32_t exit_status) {
    const auto found = expected_.find(name);
    if (found == expected_.end()) {
      ended_[name] = exit_status;  // nobody has taken it over yet
      return;
    }
    const auto exited = std::move(found->second);
    expected_.erase(found);
    exited(exit_status);
  });
  watch_->wait();
  queue_.run_on(loop);
}

void Keeper::expect(const std::string& name, std::function<void(int32_t exit_status)> exited) {
  expected_[name] = std::move(exited);
}

void Keeper::stop_watching() {
  queue_.stop();
  if (!watch_) return;
  watch_->exited = nullptr;
  asio::error_code ignored;
  watch_->descriptor.cancel(ignored);
  watch_.reset();
}

}  // namespace hvd::launch
