module libhvd/hvd

go 1.24
