package stet_test
