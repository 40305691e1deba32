// Asks for a commit, takes what it lacks of it, asks again: pieces are read in the memory of a process of
// this machine, and come over the connection from others.
#include "elastic/feeder.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "elastic/feed_messages.h"
#include "wire/messages.h"
#include "wire/tls.h"

namespace hvd::elastic {
namespace {

constexpr int kNice = 10;
constexpr size_t kAtOnce = 2;  // pieces between two looks at what else there is to do
constexpr size_t kUnderWay = 4;
constexpr Duration kConnect = std::chrono::seconds(10);
constexpr Duration kAgain = std::chrono::milliseconds(20);

}  // namespace

Feeder::Feeder(uint64_t worker, bool reads_others, LoggerPtr logger, Report report)
    : worker_(worker),
      reads_others_(reads_others),
      logger_(std::move(logger)),
      report_(std::move(report)),
      loop_("hvd-feeder") {
  loop_.post([this] {
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
    timer_ = std::make_unique<Loop::Timer>(loop_);
  });
}

Feeder::~Feeder() { static_cast<void>(take()); }

void Feeder::feed(const session::FeedInfo& info) {
  loop_.post([this, info] { begin(info); });
}

state::FeedCache Feeder::take() {
  loop_.stop();
  if (channel_) channel_->close(Duration(0));
  channel_.reset();
  timer_.reset();
  return std::move(cache_);
}

void Feeder::begin(const session::FeedInfo& info) {
  info_ = info;
  told_ = false;
  if (!joins_) progress_ = std::make_unique<state::FeedProgress>(info.pause);
  if (channel_) channel_->close(Duration(0));
  channel_.reset();
  dial();
}

void Feeder::dial() {
  timer_->cancel();
  const uint64_t number = ++dials_;
  ++pass_;
  wire::connect_channel(loop_, info_.endpoint, info_.key, wire::worker_identity(worker_),
                        wire::ChannelLimits{}, kConnect,
                        [this, number](std::shared_ptr<wire::Channel> channel, const Status& why) {
                          connected(number, std::move(channel), why);
                        });
}

void Feeder::connected(uint64_t dial, std::shared_ptr<wire::Channel> channel, const Status& why) {
  if (dial != dials_) {
    if (channel) channel->close(Duration(0));
    return;
  }
  if (!channel) {
    tell(fmt::format("worker {} at {} can't be reached: {}", info_.source, info_.endpoint, why.message));
    return timer_->start(kConnect, [this] { this->dial(); });  // for what comes after
  }
  channel_ = std::move(channel);
  logger_->info("while it waits for a place this worker is fed by worker {} at {}", info_.source,
                channel_->peer());
  next_ = under_way_ = 0;
  lacking_.clear();
  channel_->trust();
  channel_->set_handlers(
      {[this](std::span<const uint8_t> frame) { received(frame); }, [this](const Status&) { closed(); }});
  ask(0);
}

/// Mostly the source has left its generation: then the driver names another one.
void Feeder::closed() {
  channel_.reset();
  ++pass_;
  timer_->start(kAgain * 5, [this] { dial(); });
}

template <class Body>
void Feeder::send(Body body) {
  if (channel_) channel_->send(wire::encode(wire::envelope("", worker_, 0, std::move(body))));
}

void Feeder::ask(uint64_t known) {
  asked_ = true;
  wire::FeedAskT ask;
  ask.known = known;
  send(std::move(ask));
}

void Feeder::received(std::span<const uint8_t> frame) {
  try {
    const wire::EnvelopeT message = wire::decode(frame);
    if (const auto* const commit = message.body.AsFeedCommit()) return take_commit(*commit);
    if (const auto* const piece = message.body.AsFeedPiece()) return take_piece(*piece);
    throw Error(HVD_INVALID, fmt::format("{} from a worker that feeds", wire::body_name(message)));
  } catch (const std::exception& error) {  // Error, bad_alloc
    logger_->warning("worker {} at {}, which feeds this one: {}", info_.source, info_.endpoint, error.what());
    if (channel_) channel_->close(Duration(0));
    channel_.reset();
    ++pass_;
    tell(error.what());
  }
}

void Feeder::take_commit(const wire::FeedCommitT& told) {
  // Between an answer and the next question it takes what it lacks of that commit.
  if (!std::exchange(asked_, false)) throw Error(HVD_INVALID, "a commit that nobody had asked for");
  commit_ = read_commit(told);
  cache_.fit(commit_);
  lacking_ = cache_.lacking(commit_);
  const Duration took = moved_ > 0 ? now() - pass_began_ : Duration(0);
  if (progress_->may_join(bytes_of(lacking_), std::exchange(moved_, 0), took)) {
    joins_ = true;
    tell("");
  }
  if (lacking_.empty()) return ask(commit_.revision + 1);
  // A worker that could join only follows, at a fifth of what it could do: this may be for long.
  const uint64_t pass = ++pass_;
  if (joins_ && took > Duration(0)) {
    return timer_->start(std::max<Duration>(took * 4, kAgain), [this, pass] {
      if (pass == pass_) go_on();
    });
  }
  go_on();
}

void Feeder::go_on() {
  next_ = under_way_ = 0;
  pass_began_ = now();
  direct_ = reads_others_ && state::can_read(commit_.reach);
  direct_ ? read_some() : request_some();
}

void Feeder::read_some() {
  for (size_t i = 0; i < kAtOnce && next_ < lacking_.size(); ++i, ++next_) {
    const state::FeedCache::Piece& piece = lacking_[next_];
    const uint64_t address = commit_.items[piece.item].address + piece.index * state::kPiece;
    uint8_t* const to = cache_.room(commit_, piece);
    // It may have been given back meanwhile: the next answer says where it is.
    if (!state::read_from(commit_.reach, address, to, piece.size)) continue;
    cache_.arrived(commit_, piece);
    moved_ += piece.size;
    sched_yield();  // not a whole time slice, of several milliseconds, out of a step of those that train
  }
  if (next_ == lacking_.size()) return pass_done();
  loop_.post([this, pass = pass_] {
    if (pass == pass_) read_some();
  });
}

void Feeder::request_some() {
  for (; under_way_ < kUnderWay && next_ < lacking_.size(); ++under_way_, ++next_) {
    const state::FeedCache::Piece& piece = lacking_[next_];
    wire::FeedTakeT take;
    take.key = commit_.items[piece.item].key;
    take.index = piece.index;
    send(std::move(take));
  }
}

/// They come in the order in which they were asked for.
void Feeder::take_piece(const wire::FeedPieceT& told) {
  if (direct_ || under_way_ == 0) throw Error(HVD_INVALID, "a piece that nobody had asked for");
  const state::FeedCache::Piece& piece = lacking_[next_ - under_way_];
  if (told.key != commit_.items[piece.item].key || told.index != piece.index) {
    throw Error(HVD_INVALID, fmt::format("piece {} of '{}': expected {} of '{}'", told.index, told.key,
                                         piece.index, commit_.items[piece.item].key));
  }
  --under_way_;
  if (told.bytes.size() == piece.size) {
    std::memcpy(cache_.room(commit_, piece), told.bytes.data(), piece.size);
    cache_.arrived(commit_, piece);
    moved_ += piece.size;
  }
  if (next_ == lacking_.size() && under_way_ == 0) return pass_done();
  request_some();
}

void Feeder::pass_done() {
  if (moved_ > 0) return ask(0);
  // Its source writes, or is gone.
  timer_->start(kAgain, [this, pass = pass_] {
    if (pass == pass_) ask(0);
  });
}

void Feeder::tell(const std::string& failure) {
  if (std::exchange(told_, true)) return;
  Fed fed;
  fed.source = info_.source;
  fed.revision = commit_.revision;
  fed.bytes = cache_.bytes();
  fed.lacking = bytes_of(lacking_);
  fed.failure = failure;
  report_(fed);
}

}  // namespace hvd::elastic
