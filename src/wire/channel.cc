// Frames over an established TLS stream, with bounded queues.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <list>
#include <optional>
#include <utility>

#include "base/descriptors.h"
#include "base/internal_status.h"
#include "wire/socket.h"
#include "wire/tls.h"
#include "wire/tls_stream.h"

namespace hvd::wire {
namespace {

constexpr size_t kHeader = 4;
constexpr size_t kBatch = 16 << 10;                        // bytes of small frames written together
constexpr size_t kKept = 1 << 10;                          // of a buffer that waits for the next frame
constexpr size_t kTurn = 512 << 10;                        // bytes of a channel, then others have their turn
constexpr size_t kPiece = 64 << 10;                        // of a frame: memory follows what has arrived
constexpr size_t kShort = 4 << 10;                         // of frames that are read at once, where they lie
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
  TlsChannel(Loop& loop, std::shared_ptr<TlsStream> stream, const ChannelLimits& limits,
             std::shared_ptr<Lingering> lingering)
      : loop_(loop),
        stream_(std::move(stream)),
        limits_(limits),
        first_frame_(limits.first_frame),
        lingering_(std::move(lingering)),
        timer_(loop) {
    asio::error_code ignored;
    peer_ = to_text(socket().remote_endpoint(ignored));
    identity_ = identity_of(stream_->ssl());
    local_address_ = socket().local_endpoint(ignored).address().to_string();
  }

  void set_handlers(ChannelHandlers handlers) override {
    if (state_ != State::kOpen) return;
    handlers_ = std::make_shared<ChannelHandlers>(std::move(handlers));
    begin_reading();
  }

  void send(Bytes frame) override { enqueue({std::move(frame), nullptr, 0}); }
  void send_copy(std::span<const uint8_t> frame) override {
    if (state_ != State::kOpen || write_failed_ || !nothing_to_write() || frame.empty() ||
        frame.size() > std::min(kBatch, limits_.max_frame)) {
      return send(Bytes(frame.begin(), frame.end()));
    }
    open_batch();
    queued_ = frame.size();
    append(frame.size(), frame);
    write();
  }
  void send_shared(Bytes head, std::shared_ptr<const Bytes> rest, size_t from) override {
    enqueue({std::move(head), std::move(rest), from});
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
    begin_reading();
    if (nothing_to_write()) end_of_sending();
    if (lingering_ && state_ == State::kClosing) {
      lingers_as_ = trusted_ ? identity_ : "";
      place_ = lingering_->add(lingers_as_, [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->finish();
      });
    }
  }

  void trust() override { trusted_ = true; }
  void lengthen_first(size_t bytes) override {
    first_frame_ = std::min(std::max(first_frame_, bytes), limits_.max_frame);
  }

  bool pending() const override {
    ErrorCode ignored;
    return state_ == State::kOpen && (stream_->holds() || stream_->socket().available(ignored) > 0);
  }
  std::string peer() const override { return peer_; }
  std::string identity() const override { return identity_; }
  std::string local_address() const override { return local_address_; }

 private:
  enum class State { kOpen, kClosing, kClosed };
  using ErrorCode = asio::error_code;
  using Step = TlsStream::Step;

  /// Of what many receive, each channel queues its own beginning alone.
  struct Frame {
    Bytes own;
    std::shared_ptr<const Bytes> shared;
    size_t from = 0;
    size_t size() const { return own.size() + (shared ? shared->size() - from : 0); }
  };

  Tcp::socket& socket() { return stream_->socket(); }

  // ---- reading ----

  size_t most() const { return trusted_ ? limits_.max_frame : first_frame_; }

  void begin_reading() {
    if (!std::exchange(reading_, true)) read_later();
  }

  void read_later() {
    loop_.post([self = shared_from_this()] { self->read(); });
  }

  void wait_to_read(Tcp::socket::wait_type what) {
    socket().async_wait(what, [self = shared_from_this()](const ErrorCode& e) {
      if (self->state_ == State::kClosed) return;
      if (e) return self->broke(e.message());
      self->read();
    });
  }

  void read() {
    try {
      read_on();
    } catch (const std::exception& error) {  // no memory: nothing would read on
      finish();
      // At once, as a post may find none either: it is the loop that has called.
      if (auto handlers = std::exchange(handlers_, nullptr); handlers && handlers->closed)
        handlers->closed(internal_status(error));
    }
  }

  void read_on() {
    // Behind a header's place, so that the first frame is aligned.
    alignas(16) std::array<uint8_t, 2 * kHeader + kShort> read_at_once;
    for (size_t turn = 0; state_ != State::kClosed;) {
      if (turn >= kTurn) return read_later();  // others have theirs
      const bool at_once = state_ == State::kClosing || at_a_frame();
      const std::span<uint8_t> room = at_once ? std::span(read_at_once).subspan(kHeader) : room_to_read();
      size_t got = 0;
      switch (stream_->read(room.data(), room.size(), &got)) {
        case Step::kReads: return wait_to_read(Tcp::socket::wait_read);
        case Step::kWrites: return wait_to_read(Tcp::socket::wait_write);
        case Step::kEnd: return read_failed();
        case Step::kDone: break;
      }
      turn += got;
      // While it lingers nothing is kept of what the peer sends; its end ends the lingering.
      if (state_ == State::kOpen && !(at_once ? take_all(room.first(got)) : take(got))) return;
      if (state_ == State::kClosed) return;
      // Mostly that was all: the socket tells of more.
      if (at_a_frame() && !stream_->holds()) return wait_to_read(Tcp::socket::wait_read);
    }
  }

  /// Frames that are whole are told where they lie. False: this is no frame.
  bool take_all(std::span<uint8_t> bytes) {
    while (!bytes.empty() && state_ == State::kOpen) {
      if (at_a_frame() && bytes.size() > kHeader) {
        std::memcpy(header_.data(), bytes.data(), kHeader);
        const size_t size = from_header(header_);
        if (size > 0 && size <= most() && size <= bytes.size() - kHeader) {
          tell(bytes.subspan(kHeader, size));
          bytes = bytes.subspan(kHeader + size);
          continue;
        }
      }
      const std::span<uint8_t> room = room_to_read();
      const size_t part = std::min(room.size(), bytes.size());
      std::memcpy(room.data(), bytes.data(), part);
      if (!take(part)) return false;
      bytes = bytes.subspan(part);
    }
    return true;
  }

  bool at_a_frame() const { return have_ == 0 && expected_ == 0; }

  std::span<uint8_t> room_to_read() {
    if (expected_ == 0) return std::span(header_).subspan(have_);
    // A frame's memory grows with what has arrived of it: four bytes of a header set nothing aside.
    if (have_ == frame_.size()) frame_.resize(std::min(expected_, std::max(have_ * 2, kPiece)));
    return std::span(frame_).subspan(have_);
  }

  /// False: this is no frame.
  bool take(size_t got) {
    have_ += got;
    if (expected_ == 0) {
      if (have_ < kHeader) return true;
      expected_ = from_header(header_);
      have_ = 0;
      frame_.clear();
      if (expected_ > 0 && expected_ <= most()) return true;
      fail(Status(HVD_INVALID, fmt::format("frame of {} bytes announced by {}, expected 1 to {}", expected_,
                                           peer_, most())));
      return false;
    }
    if (have_ < expected_) return true;
    have_ = expected_ = 0;
    tell(frame_);
    if (frame_.capacity() > kKept) Bytes().swap(frame_);
    return true;
  }

  void tell(std::span<const uint8_t> frame) {
    // A copy of the pointer: the handler may close this channel, which drops the handlers.
    if (auto handlers = handlers_; handlers && handlers->frame) handlers->frame(frame);
  }

  void read_failed() {
    const TlsStream::Failure& why = stream_->failure();
    if (why.kind == TlsStream::Failure::Kind::kClosed)
      return fail(Status(HVD_CLOSED, fmt::format("{} closed the connection", peer_)));
    broke(why.text);
  }

  void broke(const std::string& why) {
    fail(Status(HVD_CLOSED, fmt::format("connection to {} broke: {}", peer_, why)));
  }

  // ---- writing ----

  void enqueue(Frame frame) {
    if (state_ != State::kOpen || write_failed_) return;
    if (frame.size() == 0 || frame.size() > limits_.max_frame)
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

  bool nothing_to_write() const { return queue_.empty() && !under_way_; }

  /// The next frames that share records and system calls. Small ones are copied, long ones stay where they
  /// are.
  void begin_batch() {
    open_batch();
    do {
      Frame& frame = queue_.front();
      const size_t size = frame.size();
      if (!frame.shared && frame.own.size() > kBatch)
        frame = {{}, std::make_shared<const Bytes>(std::move(frame.own)), 0};
      append(size, frame.own);
      rest_ = std::move(frame.shared);
      from_ = frame.from;
      queue_.pop_front();
    } while (!rest_ && !queue_.empty() && batch_.size() + queue_.front().own.size() <= kBatch);
  }

  void open_batch() {
    under_way_ = true;
    batch_.clear();
    written_ = batched_ = 0;
  }

  /// A frame of `size` bytes begins with these.
  void append(size_t size, std::span<const uint8_t> bytes) {
    const auto header = to_header(size);
    batch_.insert(batch_.end(), header.begin(), header.end());
    batch_.insert(batch_.end(), bytes.begin(), bytes.end());
    batched_ += size;
  }

  std::span<const uint8_t> to_write() const {
    if (written_ < batch_.size()) return std::span(batch_).subspan(written_);
    return rest_ ? std::span(*rest_).subspan(from_ + written_ - batch_.size()) : std::span<const uint8_t>();
  }

  void end_batch() {
    under_way_ = false;
    queued_ -= batched_;
    rest_.reset();
    if (batch_.capacity() > kKept) Bytes().swap(batch_);
  }

  void write() {
    for (size_t turn = 0; !waits_to_write_ && !write_failed_ && state_ != State::kClosed;) {
      if (!under_way_) {
        if (queue_.empty()) break;
        begin_batch();
      }
      const std::span<const uint8_t> bytes = to_write();
      if (bytes.empty()) {
        end_batch();
        continue;
      }
      size_t taken = 0;
      const Step step = stream_->write(bytes.data(), bytes.size(), &taken);
      written_ += taken;
      if (step == Step::kEnd) return write_failed(stream_->failure().text);
      if (step == Step::kWrites || (turn += taken) >= kTurn) wait_to_write();
    }
    if (state_ == State::kClosing && nothing_to_write() && !waits_to_write_) end_of_sending();
  }

  void wait_to_write() {
    waits_to_write_ = true;
    socket().async_wait(Tcp::socket::wait_write, [self = shared_from_this()](const ErrorCode& e) {
      self->waits_to_write_ = false;
      if (self->state_ == State::kClosed || self->write_failed_) return;
      if (e) return self->write_failed(e.message());
      switch (self->stream_->flush()) {
        case Step::kDone: return self->write();
        case Step::kEnd: return self->write_failed(self->stream_->failure().text);
        default: return self->wait_to_write();
      }
    });
  }

  // The peer may have said why before it hung up: what it sent is read first.
  void write_failed(const std::string& why) {
    write_failed_ = true;
    if (state_ == State::kClosing) return finish();
    timer_.start(kLastFrames, [self = shared_from_this(), why] { self->broke(why); });
  }

  // Closing a socket with unread bytes resets the connection and loses what is on its way. So the peer is
  // told that nothing more comes, and what it sends is dropped until it closes as well, or linger is over.
  void end_of_sending() {
    ErrorCode e;
    socket().shutdown(Tcp::socket::shutdown_send, e);
    if (e) finish();
  }

  // ---- the end ----

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
    if (place_) lingering_->remove(lingers_as_, *place_);
    close_socket(*stream_);
    if (on_closed_) loop_.post(std::exchange(on_closed_, nullptr));
  }

  Loop& loop_;
  const std::shared_ptr<TlsStream> stream_;
  const ChannelLimits limits_;
  size_t first_frame_;
  const std::shared_ptr<Lingering> lingering_;  // nothing: of a client
  std::optional<Lingering::Place> place_;
  std::string lingers_as_;
  Loop::Timer timer_;  // of lingering, or of a broken connection
  std::string peer_, identity_, local_address_;
  std::shared_ptr<ChannelHandlers> handlers_;
  State state_ = State::kOpen;
  std::function<void()> on_closed_;

  bool reading_ = false, trusted_ = false;
  std::array<uint8_t, kHeader> header_{};
  Bytes frame_;
  size_t expected_ = 0;  // bytes of the frame; 0: its header is to come
  size_t have_ = 0;      // of the frame, or of its header

  bool waits_to_write_ = false, write_failed_ = false;
  std::list<Frame> queue_;  // which takes no memory while it is empty
  size_t queued_ = 0;       // bytes of frames in queue and batch
  bool under_way_ = false;  // there is a batch, which is
  Bytes batch_;
  std::shared_ptr<const Bytes> rest_;  // and what follows it,
  size_t from_ = 0;                    // from here on
  size_t written_ = 0;                 // of both
  size_t batched_ = 0;                 // bytes of frames in it
};

}  // namespace

Lingering::Place Lingering::add(const std::string& name, std::function<void()> finish) {
  std::list<std::function<void()>>& all = by_name_[name];
  const Place place = all.insert(all.end(), std::move(finish));
  // A copy: to finish is to remove it.
  if (all.size() >
      (name.empty() ? share_of_descriptors(limits_.most_lingering) : limits_.most_lingering_of_one))
    std::function<void()>(all.front())();
  return place;
}

void Lingering::remove(const std::string& name, Place place) {
  const auto found = by_name_.find(name);
  found->second.erase(place);
  if (found->second.empty()) by_name_.erase(found);
}

std::shared_ptr<Channel> make_channel(Loop& loop, std::shared_ptr<TlsStream> stream,
                                      const ChannelLimits& limits, std::shared_ptr<Lingering> lingering) {
  return std::make_shared<TlsChannel>(loop, std::move(stream), limits, std::move(lingering));
}

}  // namespace hvd::wire
