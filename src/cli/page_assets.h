// The files of page/, compiled in: page_assets.cc.in gets them when the build is configured.
#pragma once

namespace hvd::cli::page {

extern const char kHtml[], kStyle[], kScript[], kIcon[];

}  // namespace hvd::cli::page
