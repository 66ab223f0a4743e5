from pkg.cmd.main import main

main()
