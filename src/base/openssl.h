// Whether this process mixes two TLS libraries: some frameworks export a BoringSSL of theirs to everybody.
#pragma once

namespace hvd {

/// Whether libhvd's calls to OpenSSL reach another library (its file's name is *ret_file where that is
/// known). It was loaded after one that exports the same names to the whole process, and without
/// RTLD_DEEPBIND.
bool openssl_is_replaced(const char** ret_file);

/// Whether objects that are loaded from now on would reach another library for OpenSSL than libhvd does, and
/// so need RTLD_DEEPBIND.
bool openssl_is_shadowed();

}  // namespace hvd
