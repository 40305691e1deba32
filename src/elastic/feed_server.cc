// Answers FeedAsk and FeedTake. The key is drawn anew for each generation; each worker has from the driver
// what follows from it for that worker alone.
#include "elastic/feed_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string_view>
#include <utility>

#include "elastic/feed_messages.h"
#include "wire/messages.h"

namespace hvd::elastic {
namespace {

constexpr int kNice = 10;
// Answers that wait to be sent to one of them: a commit, and the pieces that it has asked for at a time.
constexpr size_t kMostQueued = 16 << 20;
// A program that commits at each step of 100 us is not to be held up by a message for each commit.
constexpr Duration kBetweenAnswers = std::chrono::milliseconds(5);

std::string draw_key() {
  std::random_device random;
  std::string key;
  for (int i = 0; i < 8; ++i) key += fmt::format("{:08x}", random());
  return key;
}

/// The first address, IPv4 if there is one, of an interface that is up. Throws Error(HVD_UNAVAILABLE).
std::string address_of(const std::string& interface) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) list = nullptr;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family || i->ifa_name != interface) continue;
      char text[NI_MAXHOST] = "";
      const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      const int failed = getnameinfo(i->ifa_addr, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
      const bool link_local = std::string_view(text).find('%') != std::string_view::npos;
      if (failed == 0 && !link_local && (i->ifa_flags & IFF_UP) != 0) return text;
    }
  }
  throw Error(HVD_UNAVAILABLE,
              fmt::format("option interface is '{}', which has no address here, or is down", interface));
}

std::string endpoint_of(const std::string& address, uint16_t port) {
  return address.find(':') == std::string::npos ? fmt::format("{}:{}", address, port)
                                                : fmt::format("[{}]:{}", address, port);
}

}  // namespace

FeedServer::FeedServer(std::shared_ptr<state::FeedSource> source, const std::string& address,
                       LoggerPtr logger, Offered offered, const FeedLimits& limits)
    : source_(std::move(source)), logger_(std::move(logger)), limits_(limits), loop_("hvd-feed") {
  loop_.post([this, address, offered = std::move(offered)] { listen(address, offered); });
  source_->watch(this, [this] {
    if (!waited_for_.exchange(false)) return;
    try {
      loop_.post([this] { answer_soon(); });
    } catch (const std::exception&) { waited_for_ = true; }  // no memory: the next commit tells
  });
}

FeedServer::~FeedServer() {
  source_->unwatch(this);
  // What is being sent is cut off: whoever is fed asks the next one.
  loop_.stop();
  for (const Fed& fed : fed_) fed.channel->close(Duration(0));
}

void FeedServer::listen(const std::string& address, const Offered& offered) {
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
  answer_timer_ = std::make_unique<Loop::Timer>(loop_);
  idle_timer_ = std::make_unique<Loop::Timer>(loop_);
  const std::string key = draw_key();
  wire::ChannelLimits limits;
  limits.max_queued = kMostQueued;
  try {
    in_addr v4{};
    const bool is_address =
        inet_pton(AF_INET, address.c_str(), &v4) == 1 || address.find(':') != std::string::npos;
    const std::string place = is_address ? address : address_of(address);
    listener_ = std::make_unique<wire::Listener>(loop_, endpoint_of(place, 0), key, limits, logger_,
                                                 [this](const ChannelPtr& channel) { accepted(channel); });
    offered(endpoint_of(place, listener_->port()), key, "");
  } catch (const Error& error) { offered("", "", error.what()); }
}

void FeedServer::note(hvd_log_level level, const std::string& text) {
  if (!lines_.pass(now())) return;
  const uint64_t before = lines_.held_back();
  logger_->write(
      level, before == 0 ? text : fmt::format("{} ({} such lines before it were held back)", text, before));
}

void FeedServer::accepted(const ChannelPtr& channel) {
  make_room(channel->identity());
  note(HVD_LOG_INFO, fmt::format("feeds a worker that waits for a place, at {}", channel->peer()));
  fed_.push_back({channel, now(), {}});
  wire::Channel* const raw = channel.get();
  channel->set_handlers({[this, raw](std::span<const uint8_t> frame) { received(raw, frame); },
                         [this, raw](const Status&) { dropped(raw); }});
  if (fed_.size() == 1) end_idle();
}

void FeedServer::dropped(const wire::Channel* channel) {
  std::erase_if(fed_, [&](const Fed& fed) { return fed.channel.get() == channel; });
}

/// For another one. Who is cut off wrongly comes again and goes on where it was.
void FeedServer::make_room(const std::string& identity) {
  std::vector<const Fed*> may_go;
  for (const Fed& fed : fed_) {
    if (fed.channel->identity() == identity) may_go.push_back(&fed);
  }
  if (may_go.size() < limits_.of_one) {
    if (fed_.size() < limits_.channels) return;
    may_go.clear();
    for (const Fed& fed : fed_) may_go.push_back(&fed);
  }
  const Fed* const oldest = *std::min_element(may_go.begin(), may_go.end(), [](const Fed* a, const Fed* b) {
    return std::pair(a->asks.has_value(), a->heard) < std::pair(b->asks.has_value(), b->heard);
  });
  const ChannelPtr channel = oldest->channel;
  note(HVD_LOG_WARNING, fmt::format("the connection of {} at {}, which is fed, gives way to that of {}",
                                    channel->identity(), channel->peer(), identity));
  channel->close(Duration(0));
  dropped(channel.get());
}

void FeedServer::end_idle() {
  const Time time = now();
  std::vector<ChannelPtr> idle;
  Time next = time + limits_.idle;
  for (const Fed& fed : fed_) {
    if (fed.asks) continue;
    const Time end = fed.heard + limits_.idle;
    if (end <= time) {
      idle.push_back(fed.channel);
    } else {
      next = std::min(next, end);
    }
  }
  for (const ChannelPtr& channel : idle) {
    channel->close(Duration(0));
    dropped(channel.get());
  }
  if (!fed_.empty()) idle_timer_->start(next - time, [this] { end_idle(); });
}

template <class Body>
void FeedServer::send(wire::Channel& channel, Body body) {
  channel.send(wire::encode(wire::envelope("", 0, 0, std::move(body))));
}

void FeedServer::received(const wire::Channel* from, std::span<const uint8_t> frame) {
  const auto fed =
      std::find_if(fed_.begin(), fed_.end(), [&](const Fed& one) { return one.channel.get() == from; });
  if (fed == fed_.end()) return;
  const ChannelPtr channel = fed->channel;
  fed->heard = now();
  fed->asks.reset();
  try {
    const wire::EnvelopeT message = wire::decode(frame);
    if (const wire::FeedAskT* const ask = message.body.AsFeedAsk()) {
      fed->asks = ask->known;
      return answer_all();
    }
    const wire::FeedTakeT* const take = message.body.AsFeedTake();
    if (take == nullptr) {
      throw Error(HVD_INVALID, fmt::format("{} from a worker that is fed", wire::body_name(message)));
    }
    wire::FeedPieceT piece;
    piece.key = take->key;
    piece.index = take->index;
    static_cast<void>(source_->piece(take->key, take->index, &piece.bytes));
    send(*channel, std::move(piece));
    sched_yield();  // not a whole time slice out of a step
  } catch (const Error& error) {
    note(HVD_LOG_WARNING, fmt::format("a worker at {} that is fed: {}", channel->peer(), error.what()));
    channel->close(Duration(0));
    dropped(channel.get());
  }
}

/// `known`: 0, or one more than the revision of the commit that it has.
bool FeedServer::answer(const Fed& fed) {
  uint64_t revision = 0;
  if (!source_->revision(&revision) || revision + 1 == *fed.asks) return false;
  state::FeedCommit commit;
  if (!source_->commit(&commit)) return false;
  send(*fed.channel, write_commit(commit));
  return true;
}

void FeedServer::answer_all() {
  answered_ = now();
  // First: a commit that is made while it looks is told, or seen.
  waited_for_ = true;
  bool wait = false;
  const std::vector<Fed> all = fed_;  // a channel that takes no more is dropped as it is sent to
  for (const Fed& one : all) {
    if (!one.asks) continue;
    if (!answer(one)) {
      wait = true;
      continue;
    }
    const auto fed =
        std::find_if(fed_.begin(), fed_.end(), [&](const Fed& f) { return f.channel == one.channel; });
    if (fed == fed_.end()) continue;
    fed->asks.reset();
    fed->heard = now();
  }
  if (!wait) waited_for_ = false;
}

void FeedServer::answer_soon() {
  const Duration since = now() - answered_;
  if (since >= kBetweenAnswers) return answer_all();
  answer_timer_->start(kBetweenAnswers - since, [this] { answer_all(); });
}

}  // namespace hvd::elastic
