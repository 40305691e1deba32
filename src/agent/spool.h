// A spool in a file that has no name: it is gone with the agent, however that ends.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "agent/backlog.h"

namespace hvd::agent {

/// directory: "" for TMPDIR, or /var/tmp. It is looked for when the first bytes come. `limit`: the file's
/// size in bytes.
std::unique_ptr<Spool> make_file_spool(const std::string& directory, uint64_t limit);

}  // namespace hvd::agent
