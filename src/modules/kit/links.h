// TCP connections between ranks. Over links ranks tell what the module wants to tell and send the core's
// small messages: one write in the sender's thread, one read in the receiver's, and the end of a peer's
// process seen at once. Streams, for a module's bulk data, are its own once both ends have greeted each other
// on them (handshake.h).
//
// Ranks either greet all others, which is a link for each pair, or meet: each has a link to rank 0, and every
// other link, and every stream, is made when it is first used. Whoever wants to send dials. So two that dial
// each other at the same time need not agree on one of the connections: a stream goes one way, and of two
// links each rank writes on the one that it had first. Rank 0 tells all what it learns of a rank's end.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "hvd/backend.hpp"
#include "modules/kit/handshake.h"
#include "modules/kit/net.h"
#include "modules/kit/socket.h"

namespace hvdkit {

using Clock = std::chrono::steady_clock;

struct LinkHooks {  // called from the links' thread
  std::function<void(int source, const void* data, size_t size)> message;
  std::function<void(int peer, const std::string& text)> failure;  // peer -1: nobody to blame
  std::function<void(const std::string& text)> log;
  /// A stream is there, to `peer` if this rank has asked for it, from it otherwise. May be called before
  /// open.
  std::function<void(int peer, uint32_t stream, bool outward, Socket socket)> stream = {};
};

struct LinkLimits {
  /// Bytes of messages that wait until a peer reads them; then it is lost. Payload has streams of its own and
  /// never waits here. A rank is sent answers to its own calls, of which it has 512 MiB under way at most, so
  /// that one that is merely slow does not come so far.
  size_t unread = size_t{1} << 30;
  /// At least so long a peer may take that is dialed later.
  std::chrono::nanoseconds patience = std::chrono::seconds(10);
};

class Links {
 public:
  /// Listens.
  Links(const std::string& ip, LinkHooks hooks, Encrypt encrypt = Encrypt::kOff,
        const LinkLimits& limits = {});
  ~Links();  // stop
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;
  const Blob& blob() const { return blob_; }

  /// Links to every rank: dials the lower ones and is dialed by the higher ones; sends greetings[peer] to
  /// each and gives theirs. Blocks until all are there. A connection that is closed before it has greeted is
  /// dialed again until the deadline. Throws Failure: HVD_TIMEOUT that names who is missing; HVD_PEER_LOST
  /// when a peer is gone or after abort.
  std::vector<Greeting> greet(LinkGroup group, const std::vector<Greeting>& greetings,
                              Clock::time_point deadline);
  /// Links to rank 0 alone. Blocks until rank 0 has its links to all, and says so. Throws as greet does; rank
  /// 0 alone can name who is missing, and the others wait a moment longer for its word.
  void meet(LinkGroup group, Clock::time_point deadline);
  /// After meet: dials a stream to `peer`, unless that was asked before; 1 to kMaxStreams. The hook gets it.
  void ask(int peer, uint32_t stream);

  /// Steps of the module's own while it connects: "I am a step further", and the wait until `peer` has said
  /// so `steps` times since the greeting. Throws as greet does; the HVD_TIMEOUT says "rank 3 did not" +
  /// `what`.
  void tell_step(int peer);
  void wait_steps(int peer, int steps, const std::string& what, Clock::time_point deadline);

  /// From here on messages are delivered and failures reported. Throws if a peer is lost already.
  void open();

  /// Never blocks: what the socket does not take is copied and follows later, and all of it if there is no
  /// link yet. Throws HVD_PEER_LOST, also if too much of that waits: then the peer is lost.
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

  // Much longer than a thread that is ready waits for a processor.
  static constexpr std::chrono::milliseconds kLastWord{1000};
  // Between two looks at the clock while a deadline is there. One that comes later than this is of a process
  // that was held up.
  static constexpr std::chrono::milliseconds kBeat{1000}, kPunctual{1000};
  static constexpr uint64_t kWakeId = 0, kListenerId = 1, kFirstId = 2;  // of what epoll tells

  /// A connection that this rank makes.
  struct Dial {
    int peer;
    uint32_t stream;
    Clock::time_point asked{};  // when it was found to be needed; {}: with the group
    int attempt = 0;
    Clock::time_point when{};  // the next
  };

  /// Bytes that wait to be written to a peer.
  struct Backlog {
    std::deque<std::vector<uint8_t>> frames;
    size_t bytes = 0;  // about, with what each frame takes besides

    static size_t cost(size_t size) { return size + 64; }
    void add(std::vector<uint8_t> frame) {
      const size_t more = cost(frame.size());
      frames.push_back(std::move(frame));
      bytes += more;
    }
    void pop() {
      bytes -= cost(frames.front().size());
      frames.pop_front();
    }
    void clear() {
      frames.clear();
      bytes = 0;
    }
    bool empty() const { return frames.empty(); }
  };

  // link_thread.cc, link_timers.cc: run in the links' thread.
  void run();
  void serve();
  void fail(const std::exception& error) noexcept;
  void read_on();
  int next_timer() const;  // milliseconds; -1: none
  void run_timers();
  void forgive(int waited);
  void accept_all();
  void admit(Fd fd);
  void rest();
  void make_room();
  void refused(const std::string& text);
  void start(LinkGroup group, const std::vector<Greeting>& greetings, bool all, Clock::time_point deadline);
  void take_dials();
  void take_deaf();
  void try_dial(const Dial& dial);
  void dial(const Dial& dial);
  void dial_again(Dial dial, const std::string& why);
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
  void lost_peer(int peer, Peer last, std::string text, bool blames, bool needed);
  void told_lost(const uint8_t* body);
  static Peer last_word(const Connection& connection);
  void forget(const ConnectionPtr& connection);

  void watch(int fd, uint64_t id, uint32_t events, int operation);
  void flush_locked(Connection& connection);
  void write_frame(Connection& connection, Frame kind, const void* data, size_t size);
  Failure deaf(int peer, size_t waiting) const;
  bool wait_until(std::unique_lock<std::mutex>& lock, Clock::time_point deadline,
                  const std::function<bool()>& ready);
  void wait(std::unique_lock<std::mutex>& lock, Clock::time_point deadline,
            const std::function<bool()>& ready, const std::function<std::string()>& missing);
  std::string name_of(int peer) const { return "rank " + std::to_string(peer); }
  std::string missing_ranks() const;
  void tell_all(Frame kind, const void* data = nullptr, size_t size = 0) noexcept;
  void nudge();

  const LinkHooks hooks_;
  const LinkLimits limits_;
  Blob blob_;
  Fd listener_, epoll_, wake_;
  LinkGroup group_;
  std::vector<Greeting> mine_;

  std::thread thread_;
  std::atomic<std::thread::id> reader_{};  // the same, for whoever asks while it is joined

  // The links' thread's own, but before it starts. By number, which grows: the oldest come first.
  std::map<uint64_t, ConnectionPtr> young_;  // that have not greeted
  std::map<uint64_t, ConnectionPtr> grown_;  // links that have
  uint64_t next_id_ = kFirstId;
  std::vector<Dial> redials_;
  std::set<uint64_t> unread_;           // links of which more can be read, though poll does not tell
  std::unique_ptr<uint8_t[]> scratch_;  // for reading
  Clock::time_point looked_{};          // at the clock, when timers ran last
  uint64_t refusals_ = 0;
  bool resting_ = false;  // the listener, for want of descriptors
  Clock::time_point rested_{};
  bool star_ = false;                    // the ranks meet
  std::chrono::nanoseconds patience_{};  // for what is dialed later

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<ConnectionPtr> links_;  // by rank: the first that has greeted
  std::vector<ConnectionPtr> second_links_;
  std::vector<Greeting> theirs_;
  std::vector<int> steps_;
  std::vector<Peer> peers_;
  std::vector<uint32_t> asked_,
      came_;                       // by rank: bits of links and streams that were asked for, that have come
  std::vector<Dial> dials_;        // to be made by the links' thread
  std::map<int, Backlog> unsent_;  // by rank: frames that wait for a link
  std::vector<int> deaf_;          // ranks that do not read, to be lost by the links' thread
  size_t linked_ = 0, expected_ = 0;  // ranks to whom there is a link
  bool open_ = false, left_ = false, aborted_ = false, stopping_ = false;
  bool failed_ = false;
  int failed_peer_ = -1;
  std::string failed_text_;
};

/// One socket. The links' thread reads; any thread writes under `mutex`.
struct Links::Connection {
  Connection(uint64_t number, Handshake h) : id(number), handshake(std::move(h)) {}
  const uint64_t id;
  Handshake handshake;
  int peer = -1;  // known from the start for those that this rank dialed, of others once they have greeted
  bool connecting = false;
  bool greeted = false;
  Dial dial{-1, 0};              // of those that this rank dialed
  Clock::time_point deadline{};  // to greet; {}: that of the group
  std::vector<uint8_t> in;       // frames, once it has greeted
  std::mutex mutex;              // guards what follows
  Socket socket;
  bool dead = false;
  uint32_t watched = 0;
  Backlog out;
  size_t out_offset = 0;  // into the first of `out`
};

}  // namespace hvdkit
