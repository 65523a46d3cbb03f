"""python -m electra_lab"""

from electra_lab.cli import main

if __name__ == "__main__":
    main()
