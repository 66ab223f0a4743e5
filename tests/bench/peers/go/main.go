// Command peers does with client-go what tests/bench/ours.py does with this project's framework.
//
//	peers cache KUBECONFIG KIND WATCHES   informers; KIND is typed-vmis, dynamic-vmis, typed-pods or protobuf-pods
//	peers queue KIND KEYS                 KIND is plain, delayed or priority
//	peers version                         of client-go and controller-runtime
//
// It prints one JSON line. `cache` prints it once synced, then one for each line on standard input, and ends with it.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	switch {
	case len(arguments) == 4 && arguments[0] == "cache":
		watches, err := strconv.Atoi(arguments[3])
		if err != nil {
			return err
		}
		return holdCache(arguments[1], arguments[2], watches)
	case len(arguments) == 3 && arguments[0] == "queue":
		keys, err := strconv.Atoi(arguments[2])
		if err != nil {
			return err
		}
		return measureQueue(arguments[1], keys)
	case len(arguments) == 1 && arguments[0] == "version":
		return printVersions()
	}
	return fmt.Errorf("usage: peers cache KUBECONFIG KIND WATCHES | queue KIND KEYS | version")
}

func printVersions() error {
	versions := map[string]string{}
	info, _ := debug.ReadBuildInfo()
	versions["go"] = info.GoVersion
	for _, module := range info.Deps {
		switch module.Path {
		case "k8s.io/client-go", "sigs.k8s.io/controller-runtime":
			versions[module.Path[strings.Index(module.Path, "/")+1:]] = module.Version
		}
	}
	return say(versions)
}

func say(what any) error {
	return json.NewEncoder(os.Stdout).Encode(what)
}

// cpuSeconds that the process has used so far.
func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	total := usage.Utime.Nano() + usage.Stime.Nano()
	return float64(total) / 1e9
}
