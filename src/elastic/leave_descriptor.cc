// The pipe, and its reader on a loop.
#include "elastic/leave_descriptor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/status.h"

namespace hvd::elastic {

struct LeaveDescriptor::Impl : std::enable_shared_from_this<LeaveDescriptor::Impl> {
  Impl(Loop& loop, std::function<void()> fn)
      : reader(*static_cast<asio::io_context*>(loop.native())), written(std::move(fn)) {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) {
      throw Error(HVD_UNAVAILABLE, fmt::format("no pipe: {}", std::strerror(errno)));
    }
    writer = fds[1];
    reader.assign(fds[0]);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { ::close(writer); }

  void wait() {
    reader.async_wait(asio::posix::stream_descriptor::wait_read,
                      [self = shared_from_this()](asio::error_code e) {
                        if (e) return;
                        std::array<char, 64> bytes{};
                        ssize_t got = 0;
                        while ((got = ::read(self->reader.native_handle(), bytes.data(), bytes.size())) > 0) {
                        }
                        if (got == 0) return;  // the program has closed it
                        self->written();
                        self->wait();
                      });
  }

  asio::posix::stream_descriptor reader;
  int writer = -1;
  const std::function<void()> written;
};

LeaveDescriptor::LeaveDescriptor(Loop& loop, std::function<void()> written)
    : impl_(std::make_shared<Impl>(loop, std::move(written))) {
  loop.post([impl = impl_] { impl->wait(); });
}

LeaveDescriptor::~LeaveDescriptor() = default;

int LeaveDescriptor::fd() const { return impl_->writer; }

}  // namespace hvd::elastic
