// Workers that speak the control channel and nothing else: real authenticated connections, many on one
// thread.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/loop.h"
#include "wire/channel.h"
#include "wire/messages.h"
#include "wire/tls.h"

namespace hvd::bench {

inline constexpr int32_t kPerHost = 8;
inline constexpr char kSecret[] = "0123456789abcdef0123456789abcdef";
inline constexpr char kJob[] = "driver_bench";

class Workers {
 public:
  /// address: of so many bytes. kept: the same one in each generation.
  Workers(uint16_t port, size_t address, bool kept)
      : driver_("127.0.0.1:" + std::to_string(port)), address_(address), kept_(kept) {}

  void start(uint64_t worker) {
    loop_.post([this, worker] {
      clients_.push_back(std::make_unique<Client>());
      Client& client = *clients_.back();
      client.worker = worker;
      waiting_.push_back(&client);
      connect_next();
    });
  }

  /// Until `count` workers are in a generation not older than this.
  bool await(uint64_t generation, size_t count, Duration timeout) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] { return newest_ >= generation && assigned_ >= count; });
  }
  Time last_abort() const {
    return on_loop<Time>([this] { return last_abort_; });
  }
  Time last_assigned() const {
    return on_loop<Time>([this] { return last_assigned_; });
  }
  uint64_t received() const {
    return on_loop<uint64_t>([this] { return received_; });
  }
  uint64_t complaints() const {
    return on_loop<uint64_t>([this] { return complaints_; });
  }
  uint64_t newest() {
    const std::lock_guard lock(mutex_);
    return newest_;
  }

  /// Closes the connection of one that is chosen by this number.
  Time lose(uint64_t random) {
    return on_loop<Time>([&] {
      const size_t index = random % clients_.size();
      std::shared_ptr<wire::Channel> channel = clients_[index]->channel;
      clients_.erase(clients_.begin() + static_cast<ptrdiff_t>(index));
      const Time at = now();
      channel->close(Duration(0));
      return at;
    });
  }
  void close() {
    on_loop<int>([this] {
      timer_.reset();
      for (auto& client : clients_) {
        if (client->channel) client->channel->close(Duration(0));
      }
      return 0;
    });
  }
  /// Each as often as the driver has told; every ten milliseconds a part of them.
  void beat(bool on) {
    on_loop<int>([&] {
      timer_ = on ? std::make_unique<Loop::Timer>(loop_) : nullptr;
      if (on) beat_next();
      return 0;
    });
  }

 private:
  struct Client {
    uint64_t worker = 0, sequence = 0, generation = 0;
    std::shared_ptr<wire::Channel> channel;
  };

  template <class T>
  T on_loop(auto function) const {
    std::unique_ptr<T> result;
    std::mutex mutex;
    std::condition_variable done;
    std::unique_lock lock(mutex);
    loop_.post([&] {
      auto value = std::make_unique<T>(function());
      const std::lock_guard inner(mutex);
      result = std::move(value);
      done.notify_all();
    });
    done.wait(lock, [&] { return result != nullptr; });
    return *result;
  }

  /// As many at a time as a driver takes without keeping them waiting.
  void connect_next() {
    for (; !waiting_.empty() && connecting_ < 200; ++connecting_) {
      connect(*waiting_.front());
      waiting_.pop_front();
    }
  }

  void connect(Client& client) {
    wire::connect_channel(loop_, driver_, kSecret, wire::worker_identity(client.worker), {}, seconds(300),
                          [this, &client](std::shared_ptr<wire::Channel> channel, const Status& why) {
                            --connecting_;
                            loop_.post([this] { connect_next(); });
                            if (!channel) { return complain(client, "could not connect", why.message); }
                            begin(client, std::move(channel));
                          });
  }

  void begin(Client& client, std::shared_ptr<wire::Channel> channel) {
    client.channel = std::move(channel);
    client.channel->trust();
    client.channel->set_handlers(
        {[this, &client](std::span<const uint8_t> frame) { received(client, frame); },
         [this, &client](const Status& why) { complain(client, "closed", why.message); }});
    wire::HelloT hello;
    hello.protocol = wire::kProtocol;
    hello.library = "bench";
    hello.host = host_of(client);
    hello.takes_waiting = hello.takes_rosters = true;
    send(client, 0, std::move(hello));
    ready(client, 0);
  }

  void complain(const Client& client, const char* what, const std::string& why) {
    if (++complaints_ > 3) return;
    std::fprintf(stderr, "worker %llu %s: %s\n", static_cast<unsigned long long>(client.worker), what,
                 why.c_str());
  }

  static std::string host_of(const Client& client) {
    return "node-" + std::to_string((client.worker - 1) / kPerHost) + ".cluster.local";
  }

  template <class Body>
  void send(Client& client, uint64_t generation, Body body) {
    wire::EnvelopeT message = wire::envelope(kJob, client.worker, generation, std::move(body));
    message.sequence = ++client.sequence;
    client.channel->send(wire::encode(message));
  }

  void ready(Client& client, uint64_t left) {
    wire::ReadyT ready;
    ready.cause = left == 0 ? wire::Cause::Start : wire::Cause::PeerLost;
    ready.has_state = left > 0;
    ready.revision = left;
    ready.digest = std::make_unique<wire::Digest>(left, 2);
    auto address = std::make_unique<wire::AddressT>();
    address->backend = "tcp";
    address->memories = 1;
    address->dtypes = 0xffff;
    address->collectives = 0xff;
    address->blob = blob_of(client, kept_ ? 0 : left);
    ready.addresses.push_back(std::move(address));
    auto setting = std::make_unique<wire::SettingT>();
    setting->name = "local";
    setting->value = "auto";
    ready.settings.push_back(std::move(setting));
    send(client, left, std::move(ready));
  }

  /// As an address of shared memory and tcp is: about a half is of the host, and the rest of this worker and
  /// generation.
  std::vector<uint8_t> blob_of(const Client& client, uint64_t left) const {
    std::vector<uint8_t> blob(address_);
    const uint64_t host = (client.worker - 1) / kPerHost, own = client.worker << 32 | left;
    for (size_t i = 0; i < blob.size(); ++i) {
      const bool fresh = (i >= 50 && i < 70) || (i >= 90 && i < 124);
      uint64_t mixed = ((fresh ? own : host) + 1) * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u;
      mixed ^= mixed >> 29;
      blob[i] = static_cast<uint8_t>(mixed * 0x94d049bb133111ebu >> 56);
    }
    return blob;
  }

  // No message is unpacked: in a job each worker does that on a core of its own.
  void received(Client& client, std::span<const uint8_t> frame) {
    received_ += frame.size() + 4;
    const wire::Envelope* message = wire::GetEnvelope(frame.data());
    const uint64_t generation = message->generation();
    switch (message->body_type()) {
      case wire::Body::Assignment: {
        client.generation = generation;
        send(client, generation, wire::SyncedT());
        last_assigned_ = now();
        const std::lock_guard lock(mutex_);
        if (generation > newest_) {
          newest_ = generation;
          assigned_ = 0;
        }
        ++assigned_;
        changed_.notify_all();
        return;
      }
      case wire::Body::Abort: last_abort_ = now(); return ready(client, generation);
      case wire::Body::HeartbeatAck:
        if (const auto* ack = message->body_as_HeartbeatAck(); ack->interval_ms() > 0)
          interval_ms_ = ack->interval_ms();
        return;
      case wire::Body::Refused:
        return complain(client, "refused", message->body_as_Refused()->reason()->c_str());
      default: return;
    }
  }

  void beat_next() {
    timer_->start(milliseconds(10), [this] { beat_next(); });
    const auto parts = static_cast<size_t>(std::max<int64_t>(interval_ms_, 100)) / 10;
    const size_t part = turn_++ % parts;
    for (size_t i = part; i < clients_.size(); i += parts) {
      if (!clients_[i]->channel) continue;
      wire::HeartbeatT beat;
      beat.sent_ns = now().time_since_epoch().count();
      beat.progress = std::make_unique<wire::ProgressT>();
      beat.progress->commits = turn_;
      send(*clients_[i], 0, std::move(beat));
    }
  }

  const std::string driver_;
  const size_t address_;
  const bool kept_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::deque<Client*> waiting_;  // to be connected
  size_t connecting_ = 0;
  std::unique_ptr<Loop::Timer> timer_;
  size_t turn_ = 0;
  int64_t interval_ms_ = 1000;
  uint64_t received_ = 0, complaints_ = 0;
  Time last_abort_{}, last_assigned_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t newest_ = 0;
  size_t assigned_ = 0;
  mutable Loop loop_{"workers"};
};

}  // namespace hvd::bench
