# HAYLOFT_MPI=AUTO|ON|OFF: contexts in shards over several machines. AUTO builds it where MPI is found; ON fails without
# it. MPI is in a library of its own, which the program loads when mpirun has started it, so a program that runs alone
# needs no MPI.
set(HAYLOFT_MPI AUTO CACHE STRING "Ranks over MPI: AUTO, ON or OFF")
set_property(CACHE HAYLOFT_MPI PROPERTY STRINGS AUTO ON OFF)
set(HAYLOFT_HAS_MPI OFF)
if(NOT HAYLOFT_CLUSTER)
  set(HAYLOFT_MPI OFF)
endif()
if(HAYLOFT_MPI STREQUAL "AUTO")
  find_package(MPI QUIET COMPONENTS C)
elseif(HAYLOFT_MPI)
  hayloft_need(MPI libopenmpi-dev COMPONENTS C)
endif()
if(HAYLOFT_MPI AND MPI_C_FOUND)
  set(HAYLOFT_HAS_MPI ON)
endif()
