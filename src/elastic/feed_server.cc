// Answers FeedAsk and FeedTake; the key of a connection is drawn anew for each generation.
#include "elastic/feed_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <utility>

#include "elastic/feed_messages.h"
#include "wire/messages.h"

namespace hvd::elastic {
namespace {

constexpr int kNice = 10;
constexpr size_t kMostChannels = 64;
// Answers that wait to be sent to one of them: a commit, and the pieces that it has asked for at a time.
constexpr size_t kMostQueued = 16 << 20;
constexpr Duration kLook = std::chrono::milliseconds(5);

std::string draw_key() {
  std::random_device random;
  std::string key;
  for (int i = 0; i < 8; ++i) key += fmt::format("{:08x}", random());
  return key;
}

bool is_own(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

/// Addresses of this machine that others may reach.
std::vector<std::string> addresses() {
  std::vector<std::string> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET || (i->ifa_flags & IFF_UP) == 0) continue;
    char text[INET_ADDRSTRLEN] = "";
    const auto* const address = reinterpret_cast<const sockaddr_in*>(i->ifa_addr);
    if (inet_ntop(AF_INET, &address->sin_addr, text, sizeof(text)) == nullptr) continue;
    if (!is_own(text)) found.emplace_back(text);
  }
  freeifaddrs(list);
  return found;
}

std::string endpoint_of(const std::string& address, uint16_t port) {
  return address.find(':') == std::string::npos ? fmt::format("{}:{}", address, port)
                                                : fmt::format("[{}]:{}", address, port);
}

}  // namespace

FeedServer::FeedServer(std::shared_ptr<state::FeedSource> source, const std::string& local_address,
                       LoggerPtr logger, Offered offered)
    : source_(std::move(source)), logger_(std::move(logger)), loop_("hvd-feed") {
  loop_.post([this, local_address, offered = std::move(offered)] { listen(local_address, offered); });
}

FeedServer::~FeedServer() {
  // What is being sent is cut off: whoever is fed asks the next one.
  loop_.stop();
  for (const ChannelPtr& channel : channels_) channel->close(Duration(0));
}

void FeedServer::listen(const std::string& local_address, const Offered& offered) {
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
  timer_ = std::make_unique<Loop::Timer>(loop_);
  const bool own = is_own(local_address);
  const std::string key = draw_key();
  wire::ChannelLimits limits;
  limits.max_queued = kMostQueued;
  try {
    listener_ = std::make_unique<wire::Listener>(loop_, own ? "0.0.0.0:0" : endpoint_of(local_address, 0),
                                                 key, limits, logger_,
                                                 [this](const ChannelPtr& channel) { accepted(channel); });
  } catch (const Error& error) { return offered("", "", error.what()); }
  std::string endpoint;
  if (own) {
    for (const std::string& address : addresses()) endpoint += endpoint_of(address, listener_->port()) + ",";
  }
  // Its own address last: on another machine that is another one.
  offered(endpoint + endpoint_of(own ? "127.0.0.1" : local_address, listener_->port()), key, "");
}

void FeedServer::accepted(const ChannelPtr& channel) {
  if (channels_.size() >= kMostChannels) return channel->close(Duration(0));
  logger_->info("feeds a worker that waits for a place, at {}", channel->peer());
  channels_.push_back(channel);
  wire::Channel* const raw = channel.get();
  channel->set_handlers({[this, raw](std::span<const uint8_t> frame) {
                           const auto found =
                               std::find_if(channels_.begin(), channels_.end(),
                                            [&](const ChannelPtr& c) { return c.get() == raw; });
                           if (found != channels_.end()) received(ChannelPtr(*found), frame);
                         },
                         [this, raw](const Status&) { dropped(raw); }});
}

void FeedServer::dropped(const wire::Channel* channel) {
  std::erase_if(asking_, [&](const Asking& a) { return a.channel.get() == channel; });
  std::erase_if(channels_, [&](const ChannelPtr& c) { return c.get() == channel; });
}

template <class Body>
void FeedServer::send(wire::Channel& channel, Body body) {
  channel.send(wire::encode(wire::envelope("", 0, 0, std::move(body))));
}

void FeedServer::received(const ChannelPtr& channel, std::span<const uint8_t> frame) {
  try {
    const wire::EnvelopeT message = wire::decode(frame);
    if (const wire::FeedAskT* const ask = message.body.AsFeedAsk()) {
      std::erase_if(asking_, [&](const Asking& a) { return a.channel == channel; });
      const Asking asking{channel, ask->known};
      if (answer(asking)) return;
      asking_.push_back(asking);
      return look_again();
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
    logger_->warning("a worker at {} that is fed: {}", channel->peer(), error.what());
    channel->close(Duration(0));
    dropped(channel.get());
  }
}

/// `known`: 0, or one more than the revision of the commit that it has.
bool FeedServer::answer(const Asking& asking) {
  uint64_t revision = 0;
  if (!source_->revision(&revision) || revision + 1 == asking.known) return false;
  state::FeedCommit commit;
  if (!source_->commit(&commit)) return false;
  send(*asking.channel, write_commit(commit));
  return true;
}

void FeedServer::look_again() {
  if (asking_.empty()) return;
  timer_->start(kLook, [this] {
    std::erase_if(asking_, [this](const Asking& asking) { return answer(asking); });
    look_again();
  });
}

}  // namespace hvd::elastic
