package main

import (
	"net/http"

	echo4 "github.com/labstack/echo/v4"
	"github.com/labstack/echo/v5"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetecho"
	"github.com/stet-go/stet/contrib/stetecho4"
	"github.com/stet-go/stet/stethttp"
)

func serveEcho(engine *stet.Engine) (target, error) {
	e := echo.New()
	if engine != nil {
		m, err := stethttp.New(engine, options)
		if err != nil {
			return target{}, err
		}
		e.Use(stetecho.Middleware(m))
	}
	e.POST("/payments/:id", func(c *echo.Context) error {
		var p payment
		if err := c.Bind(&p); err != nil {
			return err
		}
		return c.JSON(http.StatusCreated, receipt{executed.Add(1), p})
	})
	return serveHandler("echo", e)
}

func serveEcho4(engine *stet.Engine) (target, error) {
	e := echo4.New()
	if engine != nil {
		m, err := stethttp.New(engine, options)
		if err != nil {
			return target{}, err
		}
		e.Use(stetecho4.Middleware(m))
	}
	e.POST("/payments/:id", func(c echo4.Context) error {
		var p payment
		if err := c.Bind(&p); err != nil {
			return err
		}
		return c.JSON(http.StatusCreated, receipt{executed.Add(1), p})
	})
	return serveHandler("echo4", e)
}
