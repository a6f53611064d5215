package languages

func inGo() {}
