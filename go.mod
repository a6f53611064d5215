module github.com/stet-go/stet

go 1.26
