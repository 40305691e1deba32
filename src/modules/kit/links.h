// TCP connections between each pair of ranks. Over the first, the link, ranks tell what the module wants to
// tell and send the core's small messages: one write in the sender's thread, one read in the receiver's, and
// the end of a peer's process seen at once. The others, for a module's bulk data, are its own once both ends
// have greeted each other on them (handshake.h).
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "modules/kit/checks.h"
#include "modules/kit/failure.h"
#include "modules/kit/handshake.h"
#include "modules/kit/net.h"
#include "modules/kit/socket.h"

namespace hvdkit {

using Clock = std::chrono::steady_clock;

struct LinkHooks {  // called from the links' thread
  std::function<void(int source, const void* data, size_t size)> message;
  std::function<void(int peer, const std::string& text)> failure;  // peer -1: nobody to blame
  std::function<void(const std::string& text)> log;
};

class Links {
 public:
  /// Listens.
  Links(const std::string& ip, LinkHooks hooks, Encrypt encrypt = Encrypt::kOff);
  ~Links();  // stop
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;
  const Blob& blob() const { return blob_; }

  /// Connects to every lower rank and is connected to by every higher one; sends greetings[peer] to each and
  /// gives theirs. Blocks until all are there, on the link and on `streams` connections more, at most
  /// kMaxStreams, the same number on all ranks. A connection that is closed before it has greeted is dialed
  /// again until the deadline. Throws Failure: HVD_TIMEOUT that names who is missing; HVD_PEER_LOST when a
  /// peer is gone or after abort.
  std::vector<Greeting> greet(LinkGroup group, const std::vector<Greeting>& greetings,
                              Clock::time_point deadline, uint32_t streams = 0);
  /// The connections beside the links, once after greet: by stream, then by rank. They know no Links any
  /// more.
  std::vector<std::vector<Socket>> take_streams();

  /// Steps of the module's own while it connects: "I am a step further", and the wait until `peer` has said
  /// so `steps` times since the greeting. Throws as greet does; the HVD_TIMEOUT says "rank 3 did not" +
  /// `what`.
  void tell_step(int peer);
  void wait_steps(int peer, int steps, const std::string& what, Clock::time_point deadline);

  /// From here on messages are delivered and failures reported. Throws if a peer is lost already.
  void open();

  /// Never blocks: what the socket does not take is copied and follows later. Throws HVD_PEER_LOST.
  void send(int destination, const void* data, size_t size);

  /// Who is behind a failure that the module's library had with `peer` (-1: it doesn't say): waits a moment
  /// for what the link has to say.
  Failure blame(int peer, const std::string& text);

  void leave();  // tells the peers that this end closes in peace
  void abort();  // tells the peers that this rank gives up; frees every wait. Any thread, idempotent
  void stop();   // ends the thread

 private:
  struct Connection;
  using ConnectionPtr = std::shared_ptr<Connection>;
  enum class Peer : uint8_t { kThere, kGaveUp, kLeft, kGone };

  struct Redial {
    Clock::time_point when;
    int peer;
    uint32_t stream;
    int attempt;
  };

  // link_thread.cc: runs in the links' thread.
  void run();
  int next_timer() const;  // milliseconds; -1: none
  void run_timers();
  void accept_all();
  void make_room();
  void refused(const std::string& text);
  void dial(int peer, uint32_t stream, int attempt);
  void handle(const ConnectionPtr& connection, uint32_t events);
  void shake(const ConnectionPtr& connection);
  void greeted(const ConnectionPtr& connection);
  void hand_over(const ConnectionPtr& connection);
  void close_listener();
  void read(const ConnectionPtr& connection);
  bool take_frames(const ConnectionPtr& connection);
  void write(const ConnectionPtr& connection, std::vector<uint8_t> bytes);
  void flush(const ConnectionPtr& connection);
  void broke(const ConnectionPtr& connection, const std::string& why);
  void lost(const ConnectionPtr& connection, const std::string& why, bool blames = true);
  static Peer last_word(const Connection& connection);
  void forget(const ConnectionPtr& connection);

  void watch(int fd, void* tag, uint32_t events, int operation);
  void flush_locked(Connection& connection);
  void write_frame(Connection& connection, Frame kind, const void* data, size_t size);
  void wait(std::unique_lock<std::mutex>& lock, Clock::time_point deadline,
            const std::function<bool()>& ready, const std::function<std::string()>& missing);
  std::string name_of(int peer) const { return "rank " + std::to_string(peer); }
  void tell_all(Frame kind);

  const LinkHooks hooks_;
  Blob blob_;
  Fd listener_, epoll_, wake_;
  LinkGroup group_;
  std::vector<Greeting> mine_;

  std::thread thread_;
  std::atomic<std::thread::id> reader_{};  // the same, for whoever asks while it is joined

  // The links' thread's own, but before it starts.
  std::vector<ConnectionPtr> connections_;  // all but the streams that were handed over; oldest first
  std::vector<Redial> redials_;
  std::vector<uint8_t> scratch_;  // for reading
  uint64_t refusals_ = 0;
  bool resting_ = false;  // the listener, for want of descriptors
  Clock::time_point rested_{};

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<ConnectionPtr> links_;  // by rank; set once greeted
  std::vector<Greeting> theirs_;
  std::vector<int> steps_;
  std::vector<Peer> peers_;
  std::vector<std::vector<Socket>> streams_;
  size_t greeted_ = 0, expected_ = 0;  // connections
  bool open_ = false, left_ = false, aborted_ = false, stopping_ = false;
  bool failed_ = false;
  int failed_peer_ = -1;
  std::string failed_text_;
};

/// One socket. The links' thread reads; any thread writes under `mutex`.
struct Links::Connection {
  explicit Connection(Handshake h) : handshake(std::move(h)) {}
  Handshake handshake;
  int peer = -1;  // known from the start for those that this rank dialed, of others once they have greeted
  bool connecting = false;
  bool greeted = false;
  int attempt = 0;               // of those that this rank dialed
  Clock::time_point deadline{};  // of those that it did not dial, to greet
  std::vector<uint8_t> in;       // frames, once it has greeted
  std::mutex mutex;              // guards what follows
  Socket socket;
  bool dead = false;
  uint32_t watched = 0;
  std::deque<std::vector<uint8_t>> out;
  size_t out_offset = 0;  // into the first of `out`
};

}  // namespace hvdkit
