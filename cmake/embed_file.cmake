# Writes a C++ source that holds a file, byte for byte:
#   cmake -D INPUT=page.html -D OUTPUT=page.cpp -D HEADER=server/page.h -D NAME=carat::server::kPage -P embed_file.cmake
# HEADER declares NAME as `extern const std::string_view`.
foreach(parameter INPUT OUTPUT HEADER NAME)
  if(NOT DEFINED ${parameter})
    message(FATAL_ERROR "embed_file.cmake: -D ${parameter}=... is missing")
  endif()
endforeach()

file(READ "${INPUT}" digits HEX)
string(LENGTH "${digits}" length)
math(EXPR size "${length} / 2")

# Every byte as a hexadecimal escape, 40 of them a line: escapes end where the next begins, so no byte runs into another.
string(REGEX REPLACE "(..)" "\\\\x\\1" escapes "${digits}")
set(lines "")
string(LENGTH "${escapes}" length)
set(at 0)
while(at LESS length)
  string(SUBSTRING "${escapes}" ${at} 160 line)
  string(APPEND lines "\n    \"${line}\"")
  math(EXPR at "${at} + 160")
endwhile()
if(size EQUAL 0)
  set(lines "\"\"")
endif()

get_filename_component(file "${INPUT}" NAME)
file(WRITE "${OUTPUT}" "// Made from ${file} by embed_file.cmake.
#include \"${HEADER}\"

constinit const std::string_view ${NAME}{${lines},
    ${size}};
")
