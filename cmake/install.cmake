# What `cmake --install` puts where.
install(TARGETS hvd EXPORT hvdTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/hvd/hvd.h include/hvd/driver.h include/hvd/backend.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/hvd)
