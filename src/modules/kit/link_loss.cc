// Connections that end: strangers are forgotten, peers that have not greeted are dialed again, who has
// greeted is lost.
#include <sys/epoll.h>

#include <algorithm>
#include <cstring>

#include "modules/kit/links.h"

namespace hvdkit {
namespace {

constexpr std::chrono::milliseconds kShortestPause{5}, kLongestPause{250};  // before a peer is dialed again

}  // namespace

// A connection that ended before both ends had greeted. Strangers may have crowded it out: no word about its
// peer.
void Links::broke(const ConnectionPtr& connection, const std::string& why) {
  if (!connection->handshake.dials()) return forget(connection);
  if (connection->deadline != Clock::time_point{} && connection->deadline <= Clock::now())
    return lost(connection, why + " before it greeted");
  dial_again(connection->dial, why + " before it greeted");
  forget(connection);
}

void Links::dial_again(Dial dial, const std::string& why) {
  ++dial.attempt;
  dial.when = Clock::now() + std::min(kLongestPause, kShortestPause * (1 << std::min(dial.attempt, 6)));
  redials_.push_back(dial);
  constexpr int kNoted = 4;  // what is over at once needs no word
  if (dial.attempt == kNoted) hooks_.log(name_of(dial.peer) + " " + why + ": dialed again");
}

void Links::forget(const ConnectionPtr& connection) {
  {
    std::lock_guard<std::mutex> lock(connection->mutex);
    connection->dead = true;
    connection->out.clear();
    watch(connection->socket.fd(), connection->id, 0, EPOLL_CTL_DEL);
    if (!connection->greeted)
      connection->socket.close();  // of a greeted one other threads may hold on to the number
  }
  young_.erase(connection->id);
  grown_.erase(connection->id);
}

// Behind messages that came before the generation was open the peer may have said that it goes.
Links::Peer Links::last_word(const Connection& connection) {
  Peer word = Peer::kGone;
  FrameHeader header;
  for (size_t at = 0; connection.in.size() - at >= sizeof(header); at += sizeof(header) + header.size) {
    std::memcpy(&header, connection.in.data() + at, sizeof(header));
    if (header.kind == Frame::kBye) word = Peer::kLeft;
    if (header.kind == Frame::kGaveUp) word = Peer::kGaveUp;
    if (header.size > connection.in.size() - at - sizeof(header)) break;
  }
  return word;
}

void Links::lost(const ConnectionPtr& connection, const std::string& why, bool blames) {
  if (connection != nullptr && connection->peer < 0) return forget(connection);  // a stranger
  const int peer = connection != nullptr ? connection->peer : -1;
  // A connection that is dialed later is needed even of a peer that has left in peace.
  const bool needed = connection == nullptr || !connection->greeted;
  const Peer last = connection != nullptr ? last_word(*connection) : Peer::kGone;
  if (connection != nullptr) forget(connection);
  lost_peer(peer, last, peer >= 0 ? name_of(peer) + " " + why : why, blames, needed);
}

// Once the generation has failed, nothing here takes memory: its end is reported.
void Links::lost_peer(int peer, Peer last, std::string text, bool blames, bool needed) {
  std::string kept = text;
  bool report = false;
  int32_t blamed = -1;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Peer state = Peer::kGone;
    if (peer >= 0) {
      Peer& kept = peers_[static_cast<size_t>(peer)];
      if (kept == Peer::kThere) kept = last;
      state = kept;
    }
    if ((needed || state != Peer::kLeft) && !aborted_ && !stopping_ && !failed_) {
      failed_ = true;
      failed_peer_ = state == Peer::kGaveUp || !blames ? -1 : peer;
      failed_text_ = std::move(kept);
      report = open_;
    }
    blamed = failed_peer_;
  }
  changed_.notify_all();
  if (!report) return;
  if (star_ && group_.rank == 0) tell_all(Frame::kLost, &blamed, sizeof(blamed));
  hooks_.failure(blamed, text);
}

// This rank alone can't go on: its thread ends, and with it the generation (contract 10).
void Links::fail(const std::exception& error) noexcept {
  const int rank = group_.rank;
  try {
    lost_peer(rank, Peer::kGone, name_of(rank) + " can't serve its links: " + error.what(), true, true);
  } catch (const std::exception&) {
    lost_peer(rank, Peer::kGone, "out of memory", true, true);  // so short that a string needs none
  }
}

// The others need no link to a rank to learn of its end.
void Links::told_lost(const uint8_t* body) {
  int32_t peer = -1;
  std::memcpy(&peer, body, sizeof(peer));
  const bool known = peer > 0 && peer != group_.rank && static_cast<size_t>(peer) < group_.members.size();
  if (known) {
    lost_peer(peer, Peer::kGone, name_of(peer) + " closed its link: its process is gone", true, true);
  } else {
    lost_peer(-1, Peer::kGone, "rank 0 heard that the generation was given up", true, true);
  }
}

}  // namespace hvdkit
