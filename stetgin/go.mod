module github.com/stet-go/stet/stetgin

go 1.26.0

replace github.com/stet-go/stet => ../
