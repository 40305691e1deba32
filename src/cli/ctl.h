// hvdrun ctl: asks and steers a job that runs.
#pragma once

namespace hvd::cli {

/// argv[0] is "ctl". The exit status: 0, 2 for what was asked wrongly, 1 for any other failure.
int ctl(int argc, char** argv);

}  // namespace hvd::cli
