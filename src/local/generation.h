// What an instance has of one generation. It ends once, in peace or not, and its memory goes when nobody uses
// it any more.
#pragma once

#include <memory>
#include <vector>

#include "local/boxes.h"
#include "local/collectives.h"
#include "local/host_group.h"
#include "local/messages.h"

namespace hvd::local {

struct Generation {
  Generation(uint64_t its_number, int32_t its_rank, Hosts its_hosts, std::unique_ptr<OwnBox> own_box,
             const std::shared_ptr<Boxes>& boxes, const backend::HostHandlers& handlers, LoggerPtr logger)
      : number(its_number),
        rank(its_rank),
        hosts(std::move(its_hosts)),
        local(hosts.groups[static_cast<size_t>(hosts.group_of[static_cast<size_t>(rank)])]),
        own(std::move(own_box)),
        group(boxes, local),
        messages(number, boxes, local, handlers, std::move(logger)) {}

  int32_t size() const { return static_cast<int32_t>(hosts.group_of.size()); }
  /// Position among the ranks that share this rank's memory; -1: none of them.
  int32_t index_of(int32_t other) const {
    for (size_t i = 0; i < local.size(); ++i) {
      if (local[i] == other) return static_cast<int32_t>(i);
    }
    return -1;
  }
  bool joins_hosts() const { return hosts.groups.size() > 1; }

  const uint64_t number;
  const int32_t rank;
  const Hosts hosts;
  const std::vector<int32_t>& local;  // this host's ranks
  const std::unique_ptr<OwnBox> own;  // peers open its descriptor; NULL: shares with nobody
  HostGroup group;
  Messages messages;
  std::vector<int32_t> all;      // every rank
  std::vector<int32_t> indices;  // by rank: index_of
};

}  // namespace hvd::local
