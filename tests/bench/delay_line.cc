// A line between two network namespaces that holds each packet for a fixed time (contenders.py):
//   delay_line NETNS DEVICE NETNS DEVICE MICROSECONDS
// Kernels without netem have no other.
//
// Each namespace gets a TUN device. The caller gives it an address and sets it up once this program has
// printed "ready". Nothing is lost or put in another order here, and the rate has no limit but the processor.
// The line ends, and its devices with it, when the standard input ends.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPacket = size_t{66} << 10;  // the largest one, with what the kernel says about its checksum
constexpr size_t kQueue =
    size_t{1} << 30;  // bytes on their way in a direction; then the device's queue fills

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

/// A TUN device of that name in the namespace in which this process is. Packets pass with their checksums to
/// be computed, as between veth devices: the header that says so goes through the line unread.
int open_device(const std::string& name) {
  const int fd = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) fail("/dev/net/tun");
  ifreq request{};
  if (name.size() >= sizeof(request.ifr_name))
    throw std::invalid_argument("device '" + name + "': expected at most 15 characters");
  std::memcpy(request.ifr_name, name.c_str(), name.size() + 1);
  request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
  if (ioctl(fd, TUNSETIFF, &request) != 0) fail("device " + name);
  if (ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM) != 0) fail("checksums of device " + name);
  return fd;
}

void enter(const std::string& netns) {
  const std::string path = "/run/netns/" + netns;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) fail(path);
  close(fd);
}

/// One direction of the line: what comes out of `from` goes into `to` after `delay`.
class Direction {
 public:
  Direction(int from, int to, std::chrono::microseconds delay, int end)
      : from_(from), to_(to), delay_(delay), end_(end) {}

  /// Until `end` is readable. A wake-up takes all packets that have come, and lets go all that are due.
  void run() {
    prctl(PR_SET_TIMERSLACK, 1UL);
    while (wait()) {
      take();
      for (const Clock::time_point now = Clock::now(); !held_.empty() && held_.front().due <= now;) {
        const Packet& packet = held_.front();
        // Of a device that is down, or a packet that it does not take, nothing is told: so it is with a wire.
        (void)!::write(to_, packet.bytes.get(), packet.size);
        bytes_ -= packet.size;
        held_.pop_front();
      }
    }
  }

 private:
  struct Packet {
    Clock::time_point due;
    std::unique_ptr<char[]> bytes;
    size_t size;
  };

  /// False when the line is to end.
  bool wait() {
    pollfd polls[2] = {{end_, POLLIN, 0}, {from_, static_cast<short>(bytes_ < kQueue ? POLLIN : 0), 0}};
    timespec left{};
    if (!held_.empty()) {
      const auto nanoseconds =
          std::max<std::chrono::nanoseconds>(std::chrono::nanoseconds(0), held_.front().due - Clock::now());
      left.tv_sec = static_cast<time_t>(nanoseconds.count() / 1'000'000'000);
      left.tv_nsec = static_cast<long>(nanoseconds.count() % 1'000'000'000);
    }
    if (ppoll(polls, 2, held_.empty() ? nullptr : &left, nullptr) < 0 && errno != EINTR) fail("ppoll");
    return polls[0].revents == 0;
  }

  void take() {
    while (bytes_ < kQueue) {
      const ssize_t got = ::read(from_, scratch_.data(), scratch_.size());
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (got <= 0) fail("reading from a device");
      const auto size = static_cast<size_t>(got);
      std::unique_ptr<char[]> bytes(new char[size]);
      std::memcpy(bytes.get(), scratch_.data(), size);
      held_.push_back({Clock::now() + delay_, std::move(bytes), size});
      bytes_ += size;
    }
  }

  const int from_, to_;
  const std::chrono::microseconds delay_;
  const int end_;
  std::vector<char> scratch_ = std::vector<char>(kPacket);
  std::deque<Packet> held_;
  size_t bytes_ = 0;  // of held_
};

int run(char** arguments) {
  long microseconds = -1;
  const char* const text = arguments[5];
  const auto parsed = std::from_chars(text, text + std::strlen(text), microseconds);
  if (parsed.ec != std::errc() || *parsed.ptr != '\0' || microseconds < 0 || microseconds > 60'000'000)
    throw std::invalid_argument(std::string("delay '") + text + "': expected 0 to 60000000 microseconds");
  int devices[2];
  for (int i = 0; i < 2; ++i) {
    enter(arguments[1 + 2 * i]);
    devices[i] = open_device(arguments[2 + 2 * i]);
  }
  const int end = eventfd(0, EFD_CLOEXEC);
  if (end < 0) fail("eventfd");
  const std::chrono::microseconds delay(microseconds);
  Direction there(devices[0], devices[1], delay, end), back(devices[1], devices[0], delay, end);
  const auto guarded = [](Direction& direction) {
    try {
      direction.run();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "delay_line: %s\n", e.what());
      std::_Exit(1);
    }
  };
  std::thread first([&] { guarded(there); }), second([&] { guarded(back); });
  std::puts("ready");
  std::fflush(stdout);
  char ignored[64];
  while (::read(STDIN_FILENO, ignored, sizeof(ignored)) > 0) {}
  const uint64_t one = 1;
  (void)!::write(end, &one, sizeof(one));
  first.join();
  second.join();
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 6) {
    std::fprintf(stderr, "usage: delay_line NETNS DEVICE NETNS DEVICE MICROSECONDS\n");
    return 2;
  }
  try {
    return run(arguments);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "delay_line: %s\n", e.what());
    return 1;
  }
}
