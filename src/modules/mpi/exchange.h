// A collective of some of the ranks, by messages on the communicator of all: a communicator of their own
// would have to be made first, by a call that blocks for ever if one of them dies meanwhile. The algorithms
// are the kit's.
#pragma once

#include <mpi.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "modules/kit/region.h"
#include "modules/mpi/operation.h"

namespace hvdmpi {

class Exchange final : public hvdkit::Transport {
 public:
  /// tag_bound: the highest tag that MPI allows. piece_bytes: the same on all ranks.
  /// turned: called between two looks at MPI, with whether the first found anything. The user's memory is not
  /// touched during it; it throws to give up.
  Exchange(MPI_Comm comm, int tag_bound, size_t piece_bytes, std::function<void(bool moved)> turned)
      : comm_(comm), tag_bound_(tag_bound), piece_bytes_(piece_bytes), turned_(std::move(turned)) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  /// Leaves to MPI the memory that it has not finished with.
  ~Exchange() override;

  std::unique_ptr<hvdkit::Region> region(void* memory, size_t size) override;

 private:
  class Part;
  struct Transfer {
    Part* part;
    char* data;
    size_t size;
    size_t begun = 0, ended = 0;  // pieces
  };
  struct Piece {
    std::unique_ptr<Slot> slot;
    Transfer* transfer;
    size_t number;
  };
  /// Transfers of one stream are done in their order, those of different ones in any.
  struct Way {
    int peer, tag;
    bool outward;
    bool operator<(const Way& other) const {
      return std::tie(peer, tag, outward) < std::tie(other.peer, other.tag, other.outward);
    }
  };
  struct Stream {
    std::deque<Transfer> transfers;  // the first is not done
    size_t next = 0;                 // of them: whose next piece is begun
    std::deque<Piece> running;
  };

  void add(const Way& way, const Transfer& transfer);
  void advance();
  bool move(const Way& way, Stream& stream);
  void begin(const Way& way, Stream& stream);
  size_t pieces(size_t size) const;
  size_t length(const Transfer& transfer, size_t number) const;

  const MPI_Comm comm_;
  const int tag_bound_;
  const size_t piece_bytes_;
  const std::function<void(bool)> turned_;
  std::map<Way, Stream> streams_;
  std::deque<std::unique_ptr<Slot>> free_;
};

}  // namespace hvdmpi
