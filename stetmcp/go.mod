module github.com/stet-go/stet/stetmcp

go 1.26.0

replace github.com/stet-go/stet => ../
