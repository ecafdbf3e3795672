from normfed.cli import main

main()
