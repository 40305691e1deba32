// Finds a driver, connects as its operator, asks and waits for answers.
#include "driver/operator.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <optional>

#include "base/file.h"
#include "base/loop.h"
#include "base/loop_wait.h"
#include "base/secret.h"
#include "base/text.h"
#include "wire/channel.h"
#include "wire/sequence.h"
#include "wire/tls.h"

namespace hvd::driver {
namespace {

constexpr size_t kLargestFile = 64 << 10;
constexpr Duration kLastWord = std::chrono::milliseconds(200);

[[noreturn]] void unavailable(const std::string& what, const std::string& path) {
  throw Error(HVD_UNAVAILABLE, fmt::format("{} {}: {}", what, path, std::strerror(errno)));
}

}  // namespace

/// All on the loop's thread, but for `ask`.
class Operator::Line : public std::enable_shared_from_this<Operator::Line> {
 public:
  Line(Loop& loop, const DriverAddress& address) : loop_(loop), address_(address) {}

  std::string ask(const std::string& verb, const std::string& argument, Duration timeout) {
    const Time deadline = now() + timeout;
    {
      std::lock_guard lock(mutex_);
      end_.reset();
      text_.clear();
      ++id_;
    }
    loop_.post(
        [self = shared_from_this(), verb, argument, timeout] { self->begin(verb, argument, timeout); });
    std::unique_lock lock(mutex_);
    // Connecting says by itself, at the deadline, why it has not come about.
    if (!told_.wait_until(lock, deadline + kLastWord, [&] { return end_.has_value(); })) {
      end_ = Status(HVD_TIMEOUT, fmt::format("the driver at {} has not answered within {} s",
                                             address_.endpoint, seconds_text(timeout)));
    }
    if (end_->ok()) return text_;
    throw Error(*end_);
  }

  /// Gives up the question under way; the next one gets a connection of its own.
  void close() {
    ++id_;
    if (channel_) channel_->close(Duration(0));
    channel_.reset();
  }

 private:
  void begin(const std::string& verb, const std::string& argument, Duration timeout) {
    begun_ = id_;
    if (channel_) return command(verb, argument);
    wire::ChannelLimits limits;
    limits.first_frame = limits.max_frame;  // the driver has proved that it knows the key
    wire::connect_channel(loop_, address_.endpoint, address_.key, wire::kOperatorIdentity, limits, timeout,
                          [weak = weak_from_this(), id = id_.load(), verb, argument](
                              std::shared_ptr<wire::Channel> channel, const Status& why) {
                            const auto self = weak.lock();
                            if (!self || self->id_ != id) {  // nobody waits any more
                              if (channel) channel->close(Duration(0));
                              return;
                            }
                            if (!channel) return self->end(why, "");
                            self->connected(std::move(channel));
                            self->command(verb, argument);
                          });
  }

  void connected(std::shared_ptr<wire::Channel> channel) {
    channel_ = std::move(channel);
    sequence_ = {};
    const std::weak_ptr<Line> weak = weak_from_this();
    channel_->set_handlers({[weak](std::span<const uint8_t> frame) {
                              if (const auto self = weak.lock()) self->received(frame);
                            },
                            [weak](const Status& why) {
                              if (const auto self = weak.lock()) self->closed(why);
                            }});
    wire::OperatorHelloT hello;
    hello.protocol = wire::kProtocol;
    hello.library = HVD_VERSION_STRING;
    send(std::move(hello));
  }

  void command(const std::string& verb, const std::string& argument) {
    wire::CommandT command;
    command.id = id_;
    command.verb = verb;
    command.argument = argument;
    send(std::move(command));
  }

  template <class Body>
  void send(Body body) {
    wire::EnvelopeT message = wire::envelope(address_.job, 0, 0, std::move(body));
    sequence_.number(message);
    channel_->send(wire::encode(message));
  }

  void received(std::span<const uint8_t> frame) {
    try {
      const wire::EnvelopeT message = wire::decode(frame);
      if (const auto* refused = message.body.AsRefused()) {
        const bool broken = refused->code == wire::Refusal::Protocol;
        return end(Status(broken ? HVD_UNAVAILABLE : HVD_REFUSED,
                          fmt::format("the driver at {} refused: {}", address_.endpoint,
                                      printable(refused->reason))),
                   "");
      }
      const auto* answer = message.body.AsCommandAnswer();
      if (answer == nullptr || answer->id != id_) return;
      if (answer->status == HVD_OK) return end(Status(), answer->text);
      end(Status(answer->status, printable(answer->text)), "");
    } catch (const Error& error) { end(error.status(), ""); }
  }

  void closed(const Status& why) {
    channel_.reset();
    end(Status(HVD_DRIVER_LOST,
               fmt::format("the driver at {} hung up without an answer: {}", address_.endpoint, why.message)),
        "");
  }

  void end(const Status& why, const std::string& text) {
    std::lock_guard lock(mutex_);
    if (end_ || begun_ != id_) return;
    end_ = why;
    text_ = text;
    told_.notify_all();
  }

  Loop& loop_;
  const DriverAddress address_;
  std::shared_ptr<wire::Channel> channel_;
  wire::Sequence sequence_;
  std::mutex mutex_;
  std::condition_variable told_;
  std::atomic<uint64_t> id_{0};  // of the newest question
  uint64_t begun_ = 0;           // of the one that the loop has heard of
  std::optional<Status> end_ = Status();
  std::string text_;
};

Operator::Operator(const DriverAddress& address)
    : loop_(std::make_unique<Loop>("hvd-operator")), line_(std::make_shared<Line>(*loop_, address)) {}

Operator::~Operator() { hang_up(); }

void Operator::hang_up() {
  run_and_wait(*loop_, [this] { line_->close(); });
}

std::string Operator::ask(const std::string& verb, const std::string& argument, Duration timeout) {
  if (verb.empty()) throw Error(HVD_INVALID, "no verb: expected one, such as help");
  try {
    return line_->ask(verb, argument, timeout);
  } catch (const Error& error) {
    // An answer may still come over it: the next question gets a connection of its own.
    hang_up();
    throw;
  }
}

void write_address_file(const std::string& path, const DriverAddress& address) {
  const std::string text = fmt::format(
      "# A libhvd driver. Whoever reads the key may operate the job: hvdrun ctl --address THIS-FILE status\n"
      "driver={}\njob={}\nkey={}\n",
      address.endpoint, address.job, address.key);
  const std::string unfinished = fmt::format("{}.{}.tmp", path, ::getpid());
  ::unlink(unfinished.c_str());
  const int fd = ::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) unavailable("can't write the address file", path);
  const ssize_t written = ::write(fd, text.data(), text.size());
  const bool complete = ::close(fd) == 0 && written == static_cast<ssize_t>(text.size());
  if (!complete || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    ::unlink(unfinished.c_str());
    errno = reason;
    unavailable("can't write the address file", path);
  }
}

DriverAddress read_address_file(const std::string& path) {
  std::string text;
  if (!read_file(path, kLargestFile, &text)) unavailable("can't read the driver's address from", path);
  DriverAddress address;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = line.find('=');
    if (equals == std::string::npos || line.front() == '#') continue;
    const std::string name = line.substr(0, equals);
    std::string value = line.substr(equals + 1);
    if (name == "driver")
      address.endpoint = std::move(value);
    else if (name == "job")
      address.job = std::move(value);
    else if (name == "key")
      address.key = std::move(value);
  }
  if (address.endpoint.empty()) {
    throw Error(HVD_INVALID,
                fmt::format("{} is no address file of a driver: expected a line driver=host:port", path));
  }
  return address;
}

DriverAddress address_of(const Options& options) {
  DriverAddress address;
  if (const std::string file = options.string("address_file"); !file.empty())
    address = read_address_file(file);
  if (options.is_set("driver") && address.endpoint.empty()) address.endpoint = options.string("driver");
  if (options.is_set("job") && address.job.empty()) address.job = options.string("job");
  // What the file says belongs to its driver; the environment's secret may be another job's.
  if (address.key.empty()) address.key = read_secret(options);
  if (address.endpoint.empty()) {
    throw Error(HVD_INVALID, "no driver named: expected option driver (host:port) or address_file");
  }
  if (address.key.empty()) {
    throw Error(
        HVD_INVALID,
        fmt::format("no key for the driver at {}: expected option secret or secret_file, or a file that the "
                    "driver wrote by option address_file",
                    address.endpoint));
  }
  return address;
}

std::string command(const DriverAddress& address, const std::string& verb, const std::string& argument,
                    Duration timeout) {
  return Operator(address).ask(verb, argument, timeout);
}

}  // namespace hvd::driver
