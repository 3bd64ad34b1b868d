include(CMakePackageConfigHelpers)

install(TARGETS kvant EXPORT kvantTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/kvant DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT kvantTargets NAMESPACE kvant:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvant)
configure_package_config_file(cmake/kvantConfig.cmake.in ${PROJECT_BINARY_DIR}/kvantConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvant)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvantConfigVersion.cmake COMPATIBILITY SameMinorVersion)
set(KVANT_PC_CUDA "")
if(KVANT_HAS_CUDA)
  set(KVANT_PC_CUDA " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt -lpthread")
endif()
configure_file(cmake/kvant.pc.in ${PROJECT_BINARY_DIR}/kvant.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvantConfig.cmake ${PROJECT_BINARY_DIR}/kvantConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvant)
install(FILES ${PROJECT_BINARY_DIR}/kvant.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
