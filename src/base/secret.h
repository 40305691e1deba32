// The job's secret, from where the options say.
#pragma once

#include <string>
#include <string_view>

#include "base/options.h"

namespace hvd {

/// The first line of a regular file that nobody else can read, or of standard input for "-". A file of root's
/// may be readable by its group for a process that isn't root's. Never waits for a file. Throws
/// Error(HVD_INVALID) that says why it can't be used; it shows nothing of it.
std::string read_secret_file(const std::string& path);

/// Option secret, else the file of option secret_file; "" if neither is set.
std::string read_secret(const Options& options);

/// Whether a variable, as "NAME=value", holds the secret or the name of its file. Programs that libhvd starts
/// inherit neither: a worker has a key of its own.
bool tells_secret(std::string_view entry);

}  // namespace hvd
