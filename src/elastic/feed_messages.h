// What a member that feeds says of its last commit, to and from its message.
#pragma once

#include "state/feed.h"
#include "wire/names.h"

namespace hvd::elastic {

/// As many items as a message may bear; the others are not fed.
wire::FeedCommitT write_commit(const state::FeedCommit& commit);

/// Throws Error(HVD_INVALID) if this can't be a commit that a worker of this machine holds.
state::FeedCommit read_commit(const wire::FeedCommitT& told);

}  // namespace hvd::elastic
