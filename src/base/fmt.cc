// {fmt}'s own code, compiled once and hidden in the library: all other units see declarations alone. Debian
// ships {fmt} as a shared library or as headers; the first would be a dependency of libhvd.so, the second in
// every object.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

// What fmt/format.h declares and format-inl.h defines as templates; {fmt}'s own library instantiates the
// same.
template FMT_API auto dragonbox::to_decimal(float x) noexcept -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal(double x) noexcept -> dragonbox::decimal_fp<double>;
template FMT_API auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl<char>(locale_ref) -> char;

}  // namespace detail
FMT_END_NAMESPACE
