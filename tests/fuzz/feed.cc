// Fuzzes both ends of feeding, as those do who have the key and lie: a member's answers to a worker that
// waits, and that worker's questions to a member. Whatever they say, what a worker has got is digested, and a
// member goes on.
#include <future>

#include "elastic/feed_messages.h"
#include "elastic/feed_server.h"
#include "elastic/feeder.h"
#include "fuzz.h"
#include "state/fabric.h"
#include "state/state.h"
#include "wire/messages.h"
#include "wire/tls.h"

namespace hvd::fuzz {
namespace {

const Duration kPatience = seconds(60);
const std::string kKey(40, 'k');
constexpr size_t kSmall = 3000, kLarge = 2 * state::kPiece + 77;

/// A commit as a liar tells it: mostly such that it is believed, and that the pieces matter.
wire::FeedCommitT any_commit(Decisions& d) {
  wire::FeedCommitT told;
  told.revision = d.number();
  if (d.upto(7) == 7) {
    const state::Reach reach = state::own_reach();
    told.process = d.coin() ? reach.process : d.number();
    told.mark = reach.mark;
    told.token = std::make_unique<wire::Digest>(reach.token.low, reach.token.high);
  }
  for (uint32_t i = d.upto(3); i > 0; --i) {
    auto item = std::make_unique<wire::FeedItemT>();
    item->key = std::string(1, static_cast<char>('a' + d.upto(2)));
    const uint32_t size = d.upto(3);
    item->bytes = size == 0 ? d.number() : size == 1 ? kSmall : kLarge;
    item->address = d.number();
    if (d.coin()) item->spec = std::make_unique<wire::Digest>(d.upto(1), 0);
    const uint64_t digests = d.upto(15) == 15 ? d.upto(5) : state::pieces_of(std::min(item->bytes, kLarge));
    for (uint64_t digest = 0; digest < digests; ++digest) item->digests.emplace_back(d.upto(3), 0);
    told.items.push_back(std::move(item));
  }
  return told;
}

wire::Bytes piece(const std::string& key, uint64_t index, size_t size) {
  wire::FeedPieceT told;
  told.key = key;
  told.index = index;
  told.bytes.assign(std::min(size, 2 * state::kPiece), 7);
  return wire::encode(wire::envelope("", 0, 0, std::move(told)));
}

/// Sends a worker what the input says, each time that it asks; answers for pieces are mostly those that it
/// asked for.
class Liar {
 public:
  Liar(Decisions& d, wire::Channel& channel) : d_(d), channel_(channel) {}
  void hear(std::span<const uint8_t> frame) {
    const wire::EnvelopeT asked = wire::decode(frame);
    for (uint32_t more = d_.upto(2); !d_.over() && more > 0; --more) say(asked);
    if (d_.over()) return over();
    answer(asked);
  }
  void over() {
    if (std::exchange(over_, true)) return;
    channel_.close(Duration(0));
    said.set_value();
  }
  std::promise<void> said;

 private:
  void answer(const wire::EnvelopeT& asked) {
    if (asked.body.AsFeedAsk()) return send(any_commit(d_));
    if (const auto* take = asked.body.AsFeedTake()) {
      const uint32_t size = d_.upto(3);
      channel_.send(piece(take->key, take->index,
                          size == 0   ? d_.upto(kSmall)
                          : size == 1 ? kSmall
                          : size == 2 ? state::kPiece
                                      : kLarge % state::kPiece));
    }
  }
  void say(const wire::EnvelopeT& asked) {
    switch (d_.upto(3)) {
      case 0: return send(any_commit(d_));
      case 1: return channel_.send(piece("a", d_.upto(3), kSmall));
      case 2: return answer(asked);
      default:
        if (const auto bytes = d_.some(200); !bytes.empty()) channel_.send({bytes.begin(), bytes.end()});
    }
  }
  template <class Body>
  void send(Body body) {
    channel_.send(wire::encode(wire::envelope("", 0, 0, std::move(body))));
  }
  Decisions& d_;
  wire::Channel& channel_;
  bool over_ = false;
};

/// What has come fits what it says, and is in no other item.
void must_be_whole(state::FeedCache cache) {
  for (auto& [key, item] : cache.items()) {
    HVD_PROMISE(item.bytes > 0 && item.memory.size() == item.bytes);
    HVD_PROMISE(item.pieces.digests.size() == state::pieces_of(item.bytes));
    for (size_t i = 0; i < item.pieces.marks.size(); ++i) {
      if ((item.pieces.marks[i] & state::Pieces::kKnown) == 0) continue;
      const size_t at = i * state::kPiece;
      HVD_PROMISE(item.pieces.digests[i] ==
                  digest(item.memory.data() + at, std::min(state::kPiece, item.bytes - at)));
    }
  }
}

void lie_to_a_worker(Decisions& d) {
  Loop loop("liar");
  std::promise<uint16_t> port;
  std::unique_ptr<wire::Listener> listener;
  std::shared_ptr<wire::Channel> channel;
  std::unique_ptr<Liar> liar;
  std::promise<std::future<void>> began;
  loop.post([&] {
    listener = std::make_unique<wire::Listener>(
        loop, "127.0.0.1:0", kKey, wire::ChannelLimits{}, nullptr,
        [&](const std::shared_ptr<wire::Channel>& made) {
          if (channel) return made->close(Duration(0));  // it dials again: enough was said
          channel = made;
          liar = std::make_unique<Liar>(d, *channel);
          began.set_value(liar->said.get_future());
          channel->set_handlers({[&](std::span<const uint8_t> frame) { liar->hear(frame); },
                                 [&](const Status&) { liar->over(); }});
        });
    port.set_value(listener->port());
  });
  state::FeedCache cache;
  {
    elastic::Feeder feeder(1, d.coin(), std::make_shared<Logger>(),
                           [](const elastic::Feeder::Fed& fed) { HVD_PROMISE(fed.source == 7); });
    feeder.feed({7, "127.0.0.1:" + std::to_string(port.get_future().get()), kKey, milliseconds(1)});
    auto beginning = began.get_future();
    HVD_PROMISE(beginning.wait_for(kPatience) == std::future_status::ready);
    // Until the input is over; or the worker waits, with more to say to nobody.
    beginning.get().wait_for(milliseconds(300));
    cache = feeder.take();
  }
  loop.stop();
  if (channel) channel->close(Duration(0));
  channel.reset();
  listener.reset();
  must_be_whole(std::move(cache));
}

/// A member with a commit, for good.
struct Member {
  Member() : small(kSmall, 1), large(kLarge, 2) {
    for (auto* tensor : {&small, &large}) {
      state.add_tensor(tensor == &small ? "a" : "b",
                       {tensor->data(), HVD_DTYPE_UINT8, {static_cast<int64_t>(tensor->size())}});
    }
    state::Fabric alone(1);
    HVD_PROMISE(state.sync(alone.engine(0), 0, 1, {}, kPatience, nullptr).ok() && state.save().ok());
    std::promise<std::pair<std::string, std::string>> told;
    server = std::make_unique<elastic::FeedServer>(
        state.feed(), "127.0.0.1", std::make_shared<Logger>(),
        [&](const std::string& at, const std::string& with, const std::string&) {
          told.set_value({at, with});
        });
    std::tie(endpoint, key) = told.get_future().get();
    endpoint = endpoint.substr(endpoint.rfind(',') + 1);
  }
  std::vector<uint8_t> small, large;
  state::State state{nullptr};
  std::unique_ptr<elastic::FeedServer> server;
  std::string endpoint, key;
};

void lie_to_a_member(Decisions& d) {
  static Member member;
  std::vector<wire::Bytes> frames;
  const auto say = [&](auto body) {
    frames.push_back(wire::encode(wire::envelope("", 1, 0, std::move(body))));
  };
  while (!d.over() && frames.size() < 30) {
    switch (d.upto(3)) {
      case 0: {
        wire::FeedAskT ask;
        ask.known = d.number();
        say(std::move(ask));
        break;
      }
      case 1: {
        wire::FeedTakeT take;
        take.key = d.coin() ? "b" : d.text(3);
        take.index = d.number();
        say(std::move(take));
        break;
      }
      case 2: say(any_commit(d)); break;
      default: {
        const auto bytes = d.some(100);
        if (!bytes.empty()) frames.emplace_back(bytes.begin(), bytes.end());
      }
    }
  }
  Loop loop("liar");
  std::promise<void> over;
  std::shared_ptr<wire::Channel> channel;
  wire::connect_channel(loop, member.endpoint, member.key, wire::worker_identity(1), {}, kPatience,
                        [&](std::shared_ptr<wire::Channel> made, const Status& why) {
                          HVD_PROMISE(made != nullptr && why.ok());
                          channel = std::move(made);
                          channel->trust();
                          channel->set_handlers({[&](std::span<const uint8_t> frame) {
                                                   const wire::EnvelopeT told = wire::decode(frame);
                                                   if (const auto* commit = told.body.AsFeedCommit())
                                                     elastic::read_commit(*commit);
                                                   if (const auto* piece = told.body.AsFeedPiece())
                                                     HVD_PROMISE(piece->bytes.size() <= state::kPiece);
                                                 },
                                                 [](const Status&) {}});
                          for (wire::Bytes& frame : frames) channel->send(std::move(frame));
                          channel->close_then(kPatience, [&] { over.set_value(); });
                        });
  HVD_PROMISE(over.get_future().wait_for(2 * kPatience) == std::future_status::ready);
  std::vector<uint8_t> bytes;
  HVD_PROMISE(member.state.feed()->piece("b", 2, &bytes) && bytes.size() == kLarge % state::kPiece);
}

}  // namespace

void one_input(std::span<const uint8_t> data) {
  Decisions d(data);
  d.coin() ? lie_to_a_member(d) : lie_to_a_worker(d);
}

std::vector<Bytes> seeds() {
  return {
      {0, 0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 9},  // a commit of one small item, and its piece
      {0, 0, 0, 1, 0, 1, 1, 2, 0, 0, 0, 1, 1, 1, 0, 2, 0, 2, 0, 3, 1},
      {0, 1, 0, 1, 7, 0, 2, 0, 1, 0, 0, 0, 1, 0, 2, 0, 0, 0, 1, 1, 1},  // one key twice, in another size
      {0, 0, 0, 1, 0, 1, 1, 2, 0, 0, 0,
       1, 1, 1, 1, 0, 0, 0, 0, 1, 0},  // another commit while pieces are under way
      {1, 0, 0, 1, 1, 2, 1, 0, 'a', 0},
  };
}

}  // namespace hvd::fuzz
