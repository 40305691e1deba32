// The last commit as a worker that waits for a place is fed with it, while training goes on: FeedSource at
// the worker that has it, FeedCache at the one that comes. What is in a cache is known by its digests, so it
// may be of any commit, or of none: the first sync moves what is missing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/digest.h"
#include "state/memory.h"
#include "state/pieces.h"
#include "state/reach.h"

namespace hvd::state {

struct Variable;

/// What there is of one tensor, value or object in a commit. Shards and what lies in device memory are not
/// fed.
struct FeedItem {
  std::string key;
  Digest spec;
  uint64_t bytes = 0;           // not 0
  uint64_t address = 0;         // of the copy, for who can read this process
  std::vector<Digest> digests;  // of its pieces
};

struct FeedCommit {
  uint64_t revision = 0;
  Reach reach;  // how to read the process that has it
  std::vector<FeedItem> items;
};

/// Throws Error(HVD_INVALID): a key twice, digests that are not those of the bytes, or more than this
/// machine's memory could hold twice, live and as the last commit.
void check(const FeedCommit& commit);

/// The last commit of a state, for other threads. Closed while it changes, so that a commit waits at most for
/// the copy of one piece. Thread-safe.
class FeedSource {
 public:
  explicit FeedSource(bool readable) : readable_(readable) {}

  /// False while there is none, or it is being written. *ret_revision: of the last commit.
  bool revision(uint64_t* ret_revision) const;
  bool commit(FeedCommit* ret_commit) const;
  /// One piece as it is now. False: there is none, now or at all.
  bool piece(const std::string& key, size_t index, std::vector<uint8_t>* ret_bytes) const;

  /// `changed` is called whenever there is a last commit again, by the thread that made it. It must neither
  /// wait nor throw, nor call anything here.
  void watch(const void* watcher, std::function<void()> changed);
  /// Once it returns the watcher's function is not called any more.
  void unwatch(const void* watcher);

  /// For good.
  void close();

 private:
  friend class FeedPause;
  const bool readable_;  // by other processes: option local
  mutable std::mutex mutex_;
  std::map<const void*, std::function<void()>> watchers_;
  bool closed_ = false;
  int pauses_ = 0;
  uint64_t revision_ = 0;
  const std::map<std::string, Variable>* variables_ = nullptr;  // while the last commit stands still
};

/// What a worker was fed. One thread at a time.
class FeedCache {
 public:
  struct Item {
    Digest spec;
    size_t bytes = 0;
    Memory memory;
    Pieces pieces;
  };
  struct Piece {
    size_t item = 0, index = 0;  // of the commit's items
    size_t size = 0;
  };

  /// Makes room for all that the commit has, which was checked, and drops what it has not. Throws
  /// std::bad_alloc.
  void fit(const FeedCommit& commit);
  /// What is not here yet as the commit has it. fit comes first.
  std::vector<Piece> lacking(const FeedCommit& commit) const;
  uint64_t bytes() const;
  /// Where a piece goes; then it is digested, whatever was written there.
  uint8_t* room(const FeedCommit& commit, const Piece& piece);
  void arrived(const FeedCommit& commit, const Piece& piece);

  std::map<std::string, Item>& items() { return items_; }

 private:
  std::map<std::string, Item> items_;
};

uint64_t bytes_of(const std::vector<FeedCache::Piece>& pieces);

/// Whether a worker that is being fed may take its place: once what it lacks can be moved within `pause`, at
/// the rate at which it was fed; or when passes over newer commits bring it no closer, since training changes
/// too much.
class FeedProgress {
 public:
  explicit FeedProgress(Duration pause) : pause_(pause) {}

  /// A commit is known of which so many bytes lack; `moved` and `took`: what was done since the one before.
  bool may_join(uint64_t lacking, uint64_t moved, Duration took);

 private:
  static constexpr int kPatience = 3;  // passes that brought it no closer
  const Duration pause_;
  uint64_t total_ = 0;
  Duration spent_{0};
  uint64_t least_ = UINT64_MAX;
  int vain_ = 0;
  bool joined_ = false;
};

}  // namespace hvd::state
