# Units compiled for an instruction set that a machine may lack must define no function that the linker could also take
# for the rest of the program: of inline functions and templates it keeps one copy, whichever comes first.
#   cmake -D NM=nm -D OBJECTS=a.o;b.o -P no_shared_code.cmake
list(FILTER OBJECTS INCLUDE REGEX "kernels_(avx2|avx512|amx|neon)")
if(NOT OBJECTS)
  message(FATAL_ERROR "no units to look at")
endif()
foreach(object ${OBJECTS})
  execute_process(COMMAND ${NM} --demangle --defined-only ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[0-9a-f]+ W [^\n]+" shared "${symbols}")
  if(shared)
    list(JOIN shared "\n" shared)
    message(FATAL_ERROR "${object} shares code with other units:\n${shared}")
  endif()
endforeach()
