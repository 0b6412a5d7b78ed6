// Asio with coroutines, quietly. To be included before any other header of Asio.
#pragma once

// Clang before 17 has coroutines without announcing them under the standard's name, which the standard library and Asio
// ask for. The compiler of releases is GCC; Clang builds the fuzzers and lints.
#if defined(__clang__) && __clang_major__ < 17
#ifndef __cpp_impl_coroutine
#define __cpp_impl_coroutine 201902L
#endif
#define BOOST_ASIO_HAS_CO_AWAIT 1
#define BOOST_ASIO_HAS_STD_COROUTINE 1
#endif

#if defined(__GNUC__) && !defined(__clang__)
// GCC takes the frames of Asio's coroutines, which have their own allocator, for mismatched pairs of new and delete.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
// ThreadSanitizer does not know fences. Asio's only strengthen what its locks order already.
#pragma GCC diagnostic ignored "-Wtsan"
#endif

// clang-format off
#include <utility>  // Asio 1.74 uses std::exchange without it
// clang-format on

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
