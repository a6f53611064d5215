module github.com/stet-go/stet/stetlambda

go 1.26.0

replace github.com/stet-go/stet => ../
