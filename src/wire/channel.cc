// Frames over an established TLS stream, with bounded queues.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <asio/buffer.hpp>
#include <asio/read.hpp>
#include <asio/ssl/error.hpp>
#include <asio/write.hpp>
#include <deque>
#include <utility>

#include "wire/socket.h"
#include "wire/tls.h"

namespace hvd::wire {
namespace {

constexpr size_t kHeader = 4;
constexpr size_t kBatch = 128 << 10;                       // bytes of small frames written together
constexpr size_t kPiece = 64 << 10;                        // of a frame: memory follows what has arrived
constexpr Duration kLastFrames = std::chrono::seconds(1);  // to read what a peer said before it hung up

std::array<uint8_t, kHeader> to_header(size_t size) {
  return {static_cast<uint8_t>(size >> 24), static_cast<uint8_t>(size >> 16), static_cast<uint8_t>(size >> 8),
          static_cast<uint8_t>(size)};
}

size_t from_header(const std::array<uint8_t, kHeader>& h) {
  return size_t{h[0]} << 24 | size_t{h[1]} << 16 | size_t{h[2]} << 8 | size_t{h[3]};
}

class TlsChannel final : public Channel, public std::enable_shared_from_this<TlsChannel> {
 public:
  TlsChannel(Loop& loop, std::shared_ptr<Stream> stream, const ChannelLimits& limits)
      : loop_(loop), stream_(std::move(stream)), limits_(limits), timer_(loop) {
    asio::error_code ignored;
    peer_ = to_text(socket().remote_endpoint(ignored));
    identity_ = identity_of(stream_->native_handle());
    local_address_ = socket().local_endpoint(ignored).address().to_string();
  }

  void set_handlers(ChannelHandlers handlers) override {
    if (state_ != State::kOpen) return;
    handlers_ = std::make_shared<ChannelHandlers>(std::move(handlers));
    if (std::exchange(reading_, true)) return;
    loop_.post([self = shared_from_this()] { self->read_header(); });
  }

  void send(Bytes frame) override {
    if (state_ != State::kOpen || write_failed_) return;
    if (frame.empty() || frame.size() > limits_.max_frame)
      return fail(Status(HVD_INVALID, fmt::format("frame of {} bytes to be sent to {}, expected 1 to {}",
                                                  frame.size(), peer_, limits_.max_frame)));
    if (queued_ + frame.size() > limits_.max_queued)
      return fail(
          Status(HVD_CLOSED, fmt::format("reader too slow: {} has not taken {} bytes, the limit is {}", peer_,
                                         queued_ + frame.size(), limits_.max_queued)));
    queued_ += frame.size();
    queue_.push_back(std::move(frame));
    write();
  }

  void close(Duration linger) override { close_then(linger, nullptr); }

  void close_then(Duration linger, std::function<void()> closed) override {
    handlers_.reset();
    if (state_ != State::kOpen) {
      if (closed) loop_.post(std::move(closed));
      return;
    }
    state_ = State::kClosing;
    on_closed_ = std::move(closed);
    if (linger <= Duration::zero() || write_failed_) return finish();
    timer_.start(linger, [self = shared_from_this()] { self->finish(); });
    if (!std::exchange(reading_, true)) drain();
    if (!writing_) end_of_sending();
  }

  void trust() override { trusted_ = true; }

  bool pending() const override {
    ErrorCode ignored;
    return state_ == State::kOpen && stream_->next_layer().available(ignored) > 0;
  }
  std::string peer() const override { return peer_; }
  std::string identity() const override { return identity_; }
  std::string local_address() const override { return local_address_; }

 private:
  enum class State { kOpen, kClosing, kClosed };
  using ErrorCode = asio::error_code;

  Tcp::socket& socket() { return stream_->next_layer(); }

  size_t most() const { return trusted_ ? limits_.max_frame : limits_.first_frame; }

  void read_header() {
    if (state_ == State::kClosed) return;
    if (state_ == State::kClosing) return drain();
    asio::async_read(*stream_, asio::buffer(header_),
                     [self = shared_from_this()](const ErrorCode& e, size_t) { self->have_header(e); });
  }

  void have_header(const ErrorCode& e) {
    if (state_ == State::kClosed) return;
    if (e) return read_failed(e);
    const size_t size = from_header(header_);
    if (size == 0 || size > most())
      return fail(Status(HVD_INVALID, fmt::format("frame of {} bytes announced by {}, expected 1 to {}", size,
                                                  peer_, most())));
    frame_.clear();
    read_piece(size);
  }

  // A frame's memory grows with what has arrived of it: four bytes of a header set nothing aside.
  void read_piece(size_t size) {
    if (state_ == State::kClosing) return drain();
    const size_t have = frame_.size();
    frame_.resize(std::min(size, std::max(have * 2, kPiece)));
    asio::async_read(
        *stream_, asio::buffer(frame_.data() + have, frame_.size() - have),
        [self = shared_from_this(), size](const ErrorCode& e, size_t) { self->have_piece(e, size); });
  }

  void have_piece(const ErrorCode& e, size_t size) {
    if (state_ == State::kClosed) return;
    if (e) return read_failed(e);
    if (frame_.size() < size) return read_piece(size);
    // A copy of the pointer: the handler may close this channel, which drops the handlers.
    if (auto handlers = handlers_; handlers && handlers->frame) handlers->frame(frame_);
    if (frame_.capacity() > kBatch) Bytes().swap(frame_);
    read_header();
  }

  // While it lingers nothing is kept of what the peer sends; its end ends the lingering.
  void drain() {
    if (state_ == State::kClosed) return;
    if (dropped_.empty()) dropped_.resize(4096);
    stream_->async_read_some(asio::buffer(dropped_), [self = shared_from_this()](const ErrorCode& e, size_t) {
      if (self->state_ == State::kClosed) return;
      if (e) return self->read_failed(e);
      self->drain();
    });
  }

  void read_failed(const ErrorCode& e) {
    if (e == asio::error::eof || e == asio::ssl::error::stream_truncated)
      return fail(Status(HVD_CLOSED, fmt::format("{} closed the connection", peer_)));
    fail(Status(HVD_CLOSED, fmt::format("connection to {} broke: {}", peer_, e.message())));
  }

  // One write at a time, of as many queued frames as make a batch: TLS records and system calls are
  // shared by them. A frame is copied once, into the batch.
  void write() {
    if (writing_ || queue_.empty() || write_failed_) return;
    writing_ = true;
    batch_.clear();
    batched_ = 0;
    do {
      const Bytes& frame = queue_.front();
      const auto header = to_header(frame.size());
      batch_.insert(batch_.end(), header.begin(), header.end());
      batch_.insert(batch_.end(), frame.begin(), frame.end());
      batched_ += frame.size();
      queue_.pop_front();
    } while (!queue_.empty() && batch_.size() + queue_.front().size() <= kBatch);
    asio::async_write(*stream_, asio::buffer(batch_),
                      [self = shared_from_this()](const ErrorCode& e, size_t) { self->written(e); });
  }

  void written(const ErrorCode& e) {
    writing_ = false;
    if (state_ == State::kClosed) return;
    queued_ -= batched_;
    if (batch_.capacity() > 2 * kBatch) Bytes().swap(batch_);
    if (e) return write_failed(e);
    if (!queue_.empty()) return write();
    if (state_ == State::kClosing) end_of_sending();
  }

  // The peer may have said why before it hung up: what it sent is read first.
  void write_failed(const ErrorCode& e) {
    write_failed_ = true;
    write_why_ = e.message();
    if (state_ == State::kClosing) return finish();
    timer_.start(kLastFrames, [self = shared_from_this()] {
      self->fail(
          Status(HVD_CLOSED, fmt::format("connection to {} broke: {}", self->peer_, self->write_why_)));
    });
  }

  // Closing a socket with unread bytes resets the connection and loses what is on its way. So the peer is
  // told that nothing more comes, and what it sends is dropped until it closes as well, or linger is over.
  void end_of_sending() {
    ErrorCode e;
    socket().shutdown(Tcp::socket::shutdown_send, e);
    if (e) finish();
  }

  void fail(Status why) {
    if (state_ == State::kClosed) return;
    const bool ours = state_ == State::kClosing;
    finish();
    if (ours) return;
    // Not at once: whoever called send need not expect to be called back from within it.
    loop_.post([self = shared_from_this(), why = std::move(why)] {
      auto handlers = std::exchange(self->handlers_, nullptr);
      if (handlers && handlers->closed) handlers->closed(why);
    });
  }

  void finish() {
    if (std::exchange(state_, State::kClosed) == State::kClosed) return;
    timer_.cancel();
    queue_.clear();
    close_socket(*stream_);
    if (on_closed_) loop_.post(std::exchange(on_closed_, nullptr));
  }

  Loop& loop_;
  std::shared_ptr<Stream> stream_;
  const ChannelLimits limits_;
  Loop::Timer timer_;  // of lingering, or of a broken connection
  std::string peer_, identity_, local_address_;
  std::shared_ptr<ChannelHandlers> handlers_;
  State state_ = State::kOpen;
  std::function<void()> on_closed_;

  bool reading_ = false, trusted_ = false;
  std::array<uint8_t, kHeader> header_{};
  Bytes frame_, dropped_;

  bool writing_ = false, write_failed_ = false;
  std::string write_why_;
  std::deque<Bytes> queue_;
  size_t queued_ = 0;   // bytes of frames in queue and batch
  size_t batched_ = 0;  // of which in the batch
  Bytes batch_;
};

}  // namespace

std::shared_ptr<Channel> make_channel(Loop& loop, std::shared_ptr<Stream> stream,
                                      const ChannelLimits& limits) {
  return std::make_shared<TlsChannel>(loop, std::move(stream), limits);
}

}  // namespace hvd::wire
