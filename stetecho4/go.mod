module github.com/stet-go/stet/stetecho4

go 1.26.0

replace github.com/stet-go/stet => ../
