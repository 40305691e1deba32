// A TCP connection per pair of ranks, for modules whose library brings none that can be trusted to end. Over it
// ranks greet each other (with tokens that came by the authenticated control channel), tell what the module
// wants to tell, and send the core's small messages: one write in the sender's thread, one read in the
// receiver's, and the end of a peer's process seen at once.
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
#include "modules/kit/net.h"

namespace hvdkit {

using Clock = std::chrono::steady_clock;

struct LinkHooks {  // called from the links' thread
  std::function<void(int source, const void* data, size_t size)> message;
  std::function<void(int peer, const std::string& text)> failure;  // peer -1: nobody to blame
  std::function<void(const std::string& text)> log;
};

/// What a rank tells another when they meet: bytes of the module's own, which it checks itself.
using Greeting = std::vector<uint8_t>;
constexpr size_t kMaxGreeting = 4096;

struct LinkGroup {
  uint64_t generation = 0;
  int rank = 0;
  std::vector<Blob> members;
};

class Links {
 public:
  Links(const std::string& ip, LinkHooks hooks);  // listens
  ~Links();                                       // stop
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;
  const Blob& blob() const { return blob_; }

  /// Connects to every lower rank and is connected to by every higher one; sends greetings[peer] to each
  /// and gives theirs. Blocks until all are there. Throws Failure: HVD_TIMEOUT that names who is missing;
  /// HVD_PEER_LOST when a peer is gone or after abort.
  std::vector<Greeting> greet(LinkGroup group, const std::vector<Greeting>& greetings,
                              Clock::time_point deadline);

  /// Steps of the module's own while it connects: "I am a step further", and the wait until `peer` has said so
  /// `steps` times since the greeting. Throws as greet does; the HVD_TIMEOUT says "rank 3 did not" + `what`.
  void tell_step(int peer);
  void wait_steps(int peer, int steps, const std::string& what, Clock::time_point deadline);

  /// From here on messages are delivered and failures reported. Throws if a peer is lost already.
  void open();

  /// Never blocks: what the socket does not take is copied and follows later. Throws HVD_PEER_LOST.
  void send(int destination, const void* data, size_t size);

  /// Who is behind a failure that the module's library had with `peer` (-1: it doesn't say): waits a moment for
  /// what the link has to say.
  Failure blame(int peer, const std::string& text);

  void leave();  // tells the peers that this end closes in peace
  void abort();  // tells the peers that this rank gives up; frees every wait. Any thread, idempotent
  void stop();   // ends the thread

 private:
  struct Connection;
  using ConnectionPtr = std::shared_ptr<Connection>;
  enum class Kind : uint32_t { kHello = 1, kStep, kMessage, kBye, kGaveUp };
  struct Header {
    uint32_t size;
    Kind kind;
  };
  struct Hello;

  enum class Peer : uint8_t { kThere, kGaveUp, kLeft, kGone };

  // link_thread.cc: runs in the links' thread.
  void run();
  void accept_all();
  void handle(const ConnectionPtr& connection, uint32_t events);
  void read(const ConnectionPtr& connection);
  bool take_frames(const ConnectionPtr& connection);
  void take_hello(const ConnectionPtr& connection, const uint8_t* data, size_t size);
  void flush(const ConnectionPtr& connection);
  void lost(const ConnectionPtr& connection, const std::string& why);
  static Peer last_word(const Connection& connection);
  void forget(const ConnectionPtr& connection);
  void watch(int fd, void* tag, uint32_t events, int operation);

  void connect_to(int peer, const Blob& blob);
  void write_frame(Connection& connection, Kind kind, const void* data, size_t size);
  void send_hello(Connection& connection);
  void wait(std::unique_lock<std::mutex>& lock, Clock::time_point deadline,
            const std::function<bool()>& ready, const std::function<std::string()>& missing);
  std::string name_of(int peer) const { return "rank " + std::to_string(peer); }
  void tell_all(Kind kind);

  const LinkHooks hooks_;
  Blob blob_;
  Fd listener_, epoll_, wake_;
  LinkGroup group_;
  std::vector<Greeting> mine_;

  std::thread thread_;
  std::atomic<std::thread::id> reader_{};   // the same, for whoever asks while it is joined
  std::vector<ConnectionPtr> connections_;  // all of them; the thread's own, but before it starts
  std::vector<uint8_t> scratch_;            // the thread's, for reading

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<ConnectionPtr> links_;  // by rank; set once greeted
  std::vector<Greeting> theirs_;
  std::vector<int> steps_;
  std::vector<Peer> peers_;
  int greeted_ = 0;
  bool open_ = false, left_ = false, aborted_ = false, stopping_ = false;
  bool failed_ = false;
  int failed_peer_ = -1;
  std::string failed_text_;
};

/// One socket. The links' thread reads; any thread writes under `mutex`.
struct Links::Connection {
  Fd fd;
  int peer = -1;  // known from the start for those that this rank opened
  bool outgoing = false;
  bool connecting = false;
  bool greeted = false;  // its hello was good
  std::vector<uint8_t> in;
  std::mutex mutex;
  bool dead = false;
  std::deque<std::vector<uint8_t>> out;
  size_t out_offset = 0;  // into the first of `out`
};

struct Links::Hello {
  uint32_t magic;
  uint32_t version;
  uint64_t generation;
  int32_t rank, size;
  Token token;  // the receiver's, from its blob
  // The greeting follows.
};

constexpr uint32_t kHelloMagic = 0x4c647668;
constexpr uint32_t kHelloVersion = 2;

}  // namespace hvdkit
